"""Prompts as tokens: what the router reads is what the engine reads, and what it cannot read hurts nobody."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.field import CHAT, COMPLETIONS, field
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines
from tests.support.stub_engine import serve

LONG = "tell me of blocks and hashes " * 30


async def test_tok_01_a_chat_is_routed_to_the_blocks_that_a_completion_of_the_same_tokens_left() -> None:
    """The simulated engine renders and tokenizes by itself, and says by its KV events what it holds."""
    async with engines(4) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        messages = [{"role": "user", "content": LONG}]
        async with httpx.AsyncClient(trust_env=False) as direct:
            rendered = await direct.post(
                f"{running[0].url}/tokenize", json={"model": "sim-model", "messages": messages}
            )
        body: dict[str, Any] = {"model": "sim-model", "prompt": rendered.json()["tokens"], "max_tokens": 2}
        first = await client.post(COMPLETIONS, json=body)
        chat = await client.post(CHAT, json={"model": "sim-model", "messages": messages, "max_tokens": 2})
        assert chat.headers["x-kvrouter-endpoint"] == first.headers["x-kvrouter-endpoint"]
        cached = chat.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 100
        assert int(chat.headers["x-kvrouter-matched-tokens"]) == cached


CONTENTS: list[Any] = [
    "plain",
    [{"type": "text", "text": "one part"}],
    [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}],
    [],
    "",
]


async def test_tok_04_every_form_of_content_is_relayed_as_it_came() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for content in CONTENTS:
            body = {"model": "sim-model", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
            async with httpx.AsyncClient(trust_env=False) as direct:
                straight = await direct.post(running[0].url + CHAT, json=body)
            through = await client.post(CHAT, json=body)
            assert through.status_code == straight.status_code
            if through.status_code == 200:
                assert through.json()["usage"]["prompt_tokens"] == straight.json()["usage"]["prompt_tokens"]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "result"},
    ]
    async with field(serve) as at:
        for content in (*CONTENTS, None):
            sent = {"model": "stub", "messages": [{"role": "user", "content": content}]}
            answer = await at.client.post(CHAT, json=sent)
            assert answer.status_code == 200
            assert at.engine.calls[-1].json["messages"][0]["content"] == content
        assert (await at.client.post(CHAT, json={"model": "stub", "messages": turns})).status_code == 200
        assert at.engine.calls[-1].json["messages"] == turns


async def test_tok_08_token_ids_that_no_vocabulary_has_are_the_engines_to_refuse() -> None:
    prompts: list[Any] = [[-1], [[-1]], [999_999_999], [1.5], [True], [2**63 - 1], [2**64], [1e400], [[], []], [None]]
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for prompt in prompts:
            body = b'{"model":"sim-model","max_tokens":2,"prompt":' + repr_of(prompt) + b"}"
            answer = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
            assert answer.status_code < 500, prompt
        answer = await client.post(COMPLETIONS, json={"model": "sim-model", "prompt": [10, 11], "max_tokens": 2})
        assert answer.status_code == 200


def repr_of(prompt: Any) -> bytes:
    return repr(prompt).replace("True", "true").replace("None", "null").replace("inf", "1e400").encode()


async def test_tok_09_empty_prompts_are_relayed_or_refused() -> None:
    empty: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": [""]}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [[]]}),
        (COMPLETIONS, {}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [{"role": "user", "content": ""}]}),
        (CHAT, {}),
        ("/v1/responses", {"input": ""}),
        ("/v1/messages", {"messages": [], "max_tokens": 1}),
    ]
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for path, body in empty:
            answer = await client.post(path, json={"model": "sim-model", "max_tokens": 2, **body})
            assert answer.status_code < 500, body
