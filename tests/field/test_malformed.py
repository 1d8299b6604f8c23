"""Bodies that no engine can read, or hardly: a client error, never a failure of the router."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.field import CHAT, COMPLETIONS, chat, field, streamed
from tests.support.rawclient import connected, post
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines
from tests.support.stub_engine import DONE, Call, serve, token

HELLO = [{"role": "user", "content": "hello"}]

WRONG_TYPES: list[dict[str, Any]] = [
    {"messages": HELLO, "model": 7},
    {"messages": HELLO, "model": ["sim-model"]},
    {"messages": HELLO, "model": {"id": "sim-model"}},
    {"messages": HELLO, "model": ""},
    {"messages": HELLO, "model": True},
    {"messages": HELLO, "stream": "perhaps"},
    {"messages": HELLO, "stream": [1]},
    {"messages": HELLO, "stream": {}},
    {"messages": HELLO, "max_tokens": "x"},
    {"messages": HELLO, "max_tokens": [1]},
    {"messages": HELLO, "max_tokens": {}},
    {"messages": HELLO, "max_tokens": 1.5},
    {"messages": HELLO, "max_completion_tokens": "x"},
    {"messages": {"role": "user"}},
    {"messages": "hello"},
    {"messages": [1, 2]},
    {"messages": [{"role": 1, "content": 2}]},
    {"messages": None},
    {"messages": HELLO, "stream_options": "x", "stream": True},
    {"messages": HELLO, "n": "x"},
    {"messages": HELLO, "tools": 1},
    {"messages": HELLO, "cache_salt": 1},
    {"messages": HELLO, "chat_template_kwargs": 1},
    {"messages": HELLO, "priority": "x"},
]


async def test_mal_02_wrong_types_are_client_errors() -> None:
    """The simulated engine refuses by name as vLLM does."""
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for body in WRONG_TYPES:
            answer = await client.post(CHAT, json={"model": "sim-model", **body})
            assert answer.status_code < 500, body
        for body in ({"prompt": 1}, {"prompt": {}}, {"prompt": [None]}, {"prompt": [[[]]]}, {"prompt": [1, "a"]}):
            answer = await client.post(COMPLETIONS, json={"model": "sim-model", **body})
            assert 400 <= answer.status_code < 500, body
        assert (await client.post(CHAT, json={"model": "sim-model", "messages": HELLO})).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages"])
async def test_mal_03_json_that_is_no_object_is_refused(path: str) -> None:
    async with field(serve) as at:
        for body in (b"[]", b"1", b'"x"', b"null", b"true"):
            answer = await at.client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert answer.json()["error"]["type"] == "invalid_request_error"
        assert at.calls == 0


SURROGATES = [
    b'{"model":"stub","messages":[{"role":"user","content":"x \\ud83d"}]}',
    b'{"model":"stub","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    b'{"name":"f","parameters":{"description":"\\udcf0"}}}]}',
    b'{"model":"\\ud83d","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"stub","prompt":"\\udcf0"}',
    b'{"model":"stub","cache_salt":"\\udcf0","prompt":"x"}',
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", SURROGATES)
async def test_mal_04_half_an_emoji_is_relayed_as_it_came_or_refused(body: bytes, stream: bool) -> None:
    if stream:
        body = body[:-1] + b',"stream":true}'
    path = COMPLETIONS if b'"prompt"' in body else CHAT
    async with field(serve) as at:
        answer = await at.client.post(path, content=body)
        assert answer.status_code < 500
        assert b"Traceback" not in answer.content
        assert [call.body for call in at.engine.calls] in ([], [body])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"stub","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"stub","messages":[{"role":"user","content":"\xe2\x82"}]}',
        json.dumps(chat()).encode("utf-16"),
        json.dumps(chat()).encode("utf-8-sig"),
        b'{"\xff":1,"model":"stub","messages":[]}',
    ],
)
async def test_mal_05_bytes_that_are_no_utf_8_are_a_client_error(body: bytes) -> None:
    async with field(serve) as at:
        for path in (CHAT, COMPLETIONS, "/v1/embeddings", "/tokenize"):
            assert (await at.client.post(path, content=body)).status_code < 500
        assert (await at.chat()).status_code == 200


DEEP = 20_000
NESTED = [
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"model":"stub","messages":[],"unknown":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"model":"stub","messages":[],"tools":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"model":"stub","messages":[],"kv_transfer_params":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"model":"stub","messages":[],"vllm_xargs":{"kv_transfer_params":1,"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    b'{"model":"stub","messages":[{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"model":"stub","stream":true,"stream_options":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b',"messages":[]}',
]


@pytest.mark.parametrize("number", range(len(NESTED)))
async def test_mal_07_deep_nesting_is_no_failure(number: int) -> None:
    async with field(serve, usage__inject_stream_usage=True) as at:
        for path in (CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/v1/embeddings"):
            answer = await at.client.post(path, content=NESTED[number])
            assert answer.status_code < 500
        assert (await at.chat()).status_code == 200


async def test_mal_12_requests_without_a_body_hurt_nobody() -> None:
    async def script(call: Call) -> None:
        await call.stream(*(token(number) for number in range(20)), DONE, pause_s=0.02)

    async with field(script) as at:
        stream = asyncio.create_task(at.client.post(CHAT, json=streamed()))
        for method in ("POST", "GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"):
            for path in (CHAT, COMPLETIONS):
                answer = await at.client.request(method, path)
                assert 400 <= answer.status_code < 500, method
        for path in ("/v1/responses", "/v1/messages", "/tokenize", "/v1/embeddings"):
            assert (await at.client.post(path)).status_code < 500
        assert (await stream).content.endswith(DONE)


async def test_mal_12_a_length_of_zero_is_an_empty_body() -> None:
    async with field(serve) as at, connected(at.router) as client:
        assert (await client.ask(post(CHAT, b""))).status == 400
        assert (await client.ask(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n\r\n")).status == 400


async def test_mal_14_lines_that_are_no_events_are_relayed() -> None:
    lines = [token(0), b"data: {bad\n\n", token(1), b"garbage line\n\n", b": comment\n\n", b"data\n\n", token(2), DONE]

    async def script(call: Call) -> None:
        await call.stream(*lines, pause_s=0.005)

    async with field(script) as at:
        answer: httpx.Response = await at.client.post(CHAT, json=streamed())
        assert answer.content == b"".join(lines)
