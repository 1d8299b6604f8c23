"""Bodies, headers, methods and paths that no client should send."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from router.api.front import PATHS
from tests.support.asgi import AsgiClient
from tests.support.fuzz import World, judge, share

MEMBERS = [
    "model",
    "messages",
    "prompt",
    "input",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "tools",
    "tool_choice",
    "cache_salt",
    "priority",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "sampling_params",
    "token_ids",
    "role",
    "content",
    "text",
    "type",
    "image_url",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "previous_response_id",
    "system",
    "documents",
    "echo",
    "logprobs",
    "suffix",
    "response_format",
    "truncate_prompt_tokens",
    "extra_args",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["stub", "user", "assistant", "system", "text", "auto", "\ud83d", "\x00", "{{ x }}", "{% for"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)
TURN = st.fixed_dictionaries({}, optional={"role": SCALARS, "content": TREES, "tool_calls": TREES})
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["stub", "other", "", None, 5]),
        "messages": st.lists(TURN, max_size=3) | TREES,
        "prompt": st.lists(st.integers(-1, 2**33), max_size=5)
        | st.lists(st.lists(st.integers(0, 9)), max_size=3)
        | TREES,
        "input": TREES,
        "stream": st.booleans() | SCALARS,
        "n": SCALARS,
        "max_tokens": SCALARS,
        "priority": SCALARS,
        "cache_salt": SCALARS,
        "tools": TREES,
        "chat_template_kwargs": TREES,
        "kv_transfer_params": TREES,
        "vllm_xargs": TREES,
        "sampling_params": st.fixed_dictionaries({"extra_args": TREES}) | TREES,
        "previous_response_id": SCALARS,
        "stream_options": TREES,
    },
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A body with a piece cut out, put in, or repeated."""
    body = draw(whole)
    start, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
    filling = draw(
        st.binary(max_size=8) | st.sampled_from([b"", b"[" * 3000, b'{"a":' * 3000, b"\xef\xbb\xbf", b"NaN"])
    )
    return body[:start] + filling + draw(st.sampled_from([body[end:], body[start:]]))


JSON_BODIES = (OBJECTS | TREES).map(lambda value: json.dumps(value).encode())
BODIES = JSON_BODIES | damaged(JSON_BODIES) | st.binary(max_size=200)
ALL_PATHS = (
    *PATHS,
    *("/debug/explain", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses/../x", "/v1/models"),
    *("/v1/models/stub", "/health", "/ready", "/metrics", "/version", "/debug/endpoints", "/debug/decisions", "/"),
    *("/admin/drain", "/admin/endpoints/x/drain", "/debug/slots", "/openapi.json", "/v1/chat/completions//"),
)
PLACES = st.sampled_from(ALL_PATHS) | st.text(max_size=20).map(lambda text: "/" + text)
NAMES = st.sampled_from(
    b"content-type content-length content-encoding transfer-encoding connection host expect accept accept-encoding "
    b"authorization x-api-key x-request-id origin cookie x-session-id x-llm-d-slo-ttft-ms x-llm-d-inference-objective "
    b"x-llm-d-inference-fairness-id x-gateway-destination-endpoint x-prefiller-host-port x-data-parallel-rank "
    b"x-kvrouter-explain x-vllm-priority traceparent te upgrade range if-none-match".split()
) | st.binary(min_size=1, max_size=12)
VALUES = st.sampled_from(
    [
        b"",
        b"application/json",
        b"multipart/form-data; boundary=x",
        b"gzip",
        b"chunked",
        b"close",
        b"-1",
        b"nan",
        b"1e999",
        b"Bearer ",
        b"Bearer x",
        b"\xff\xfe",
        b"a" * 5000,
        b"127.0.0.1:1",
        b"inf",
        b"9" * 400,
        b"application/x-www-form-urlencoded",
    ]
) | st.binary(max_size=30)
_BREAKS = frozenset(b"\r\n\0")
"""The parser ends a field there, or refuses it."""
FIELDS = st.lists(st.tuples(NAMES, VALUES).filter(lambda field: not _BREAKS.intersection(b"".join(field))), max_size=6)


async def _ask(world: World, method: str, path: str, **how: Any) -> None:
    if path in ("/admin/drain",):
        method = "GET"
    answer = await AsgiClient(world.app.asgi).request(method, path, **how)
    assert answer.status is not None
    judge(answer.status, answer.headers, answer.body, head=method == "HEAD")
    assert not answer.messages[-1].get("more_body", False)


@share(0.35)
@given(path=st.sampled_from(tuple(PATHS)), body=BODIES, pieces=st.integers(1, 3))
def test_any_body(world: World, path: str, body: bytes, pieces: int) -> None:
    size = -(-len(body) // pieces) or 1
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    world.run(_ask(world, "POST", path, body=parts))


@share(0.15)
@example(method="GET", path="/nothing", headers=[], query=b"\x80", body=b"")
@example(method="POST", path="/v1/completions", headers=[], query=b"a b", body=b"{}")
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "BREW"]),
    path=PLACES,
    headers=FIELDS,
    query=st.binary(max_size=30) | st.just(b"path=/v1/completions"),
    body=JSON_BODIES | st.just(b""),
)
def test_any_head(
    world: World, method: str, path: str, headers: list[tuple[bytes, bytes]], query: bytes, body: bytes
) -> None:
    world.run(_ask(world, method, path, headers=headers, query=query, body=body))
