"""Prefill on one engine, decode on another, by NIXL: the KV is reused, and no fault hurts more than it must."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from tests.real_vllm.conftest import LEASE_S
from tests.real_vllm.engines import BLOCK, Engine
from tests.real_vllm.routers import client_of, eventually, exact, healthy, reports, router_over
from tests.real_vllm.workload import CHAT, COMPLETIONS, TOOL, numbers
from tests.support.router import RunningRouter

Note = Callable[[str], None]
PREFILLED = "x-kvrouter-prefill-endpoint"
DECIDER = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": BLOCK}}


class Pair(NamedTuple):
    prefill: Engine
    decode: Engine
    router: RunningRouter
    client: httpx.AsyncClient

    def prompt_tokens(self, source: str) -> float:
        """Of the decode engine so far, by where their KV came from."""
        return self.decode.metric("vllm:prompt_tokens_by_source_total", source=source)

    @property
    def idle(self) -> bool:
        return self.router.app.inflight.snapshot() == {} and self.router.app.lifecycle.active == 0

    def on(self, engine: Engine) -> bool:
        """Whether the router has something running there."""
        return engine.id in self.router.app.inflight.snapshot()


@asynccontextmanager
async def pair_of(engines: list[Engine], **flags: Any) -> AsyncIterator[Pair]:
    prefill, decode = engines
    chosen: dict[str, Any] = {"scheduling__plugins": [DECIDER], "scheduling__decider": "prefix-based-pd-decider"}
    async with (
        router_over(prefill=[prefill], decode=[decode], **chosen, **flags) as router,
        client_of(router) as client,
    ):
        await exact(router)
        yield Pair(prefill, decode, router, client)


# Engines outlive a test, and a prompt that one of them knows is not handed over.
_fresh = itertools.count(time.time_ns() % 1_000_000_007)


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    text = " ".join(map(str, numbers(next(_fresh), 90)))
    said = [{"role": "user", "content": text}]
    return CHAT, {"model": "tiny", "messages": said, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | more


def completion(**more: Any) -> tuple[str, dict[str, Any]]:
    prompt = numbers(next(_fresh), 200)
    return COMPLETIONS, {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
    } | more


SCHEMA = {"type": "json_schema", "json_schema": {"name": "w", "schema": TOOL["function"]["parameters"]}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
ASKS = {
    "chat": chat(),
    "chat, streamed": chat(**STREAM),
    "completion": completion(),
    "completion, streamed": completion(**STREAM),
    "completion of text": completion(prompt=f"{next(_fresh)} a prompt of text " * 20),
    "chat with logprobs": chat(logprobs=True, top_logprobs=3),
    "completion with logprobs, streamed": completion(logprobs=2, **STREAM),
    "stop": completion(
        prompt=f"{next(_fresh)} stop at a letter " * 20, stop=["e", "\n"], max_tokens=40, ignore_eos=False
    ),
    "one token": chat(max_tokens=1),
    "one token, streamed": completion(max_tokens=1, **STREAM),
    "max_completion_tokens": chat(max_tokens=None, max_completion_tokens=5),
    "a tool call": chat(tools=[TOOL], tool_choice="required", max_tokens=60, ignore_eos=False),
    "a tool call, streamed": chat(tools=[TOOL], tool_choice="required", max_tokens=60, ignore_eos=False, **STREAM),
    "structured": chat(response_format=SCHEMA, max_tokens=60, ignore_eos=False),
    "echo": completion(echo=True),
    "min_tokens": chat(min_tokens=6, ignore_eos=False),
}


@pytest.mark.parametrize("name", ASKS)
async def test_a_handed_over_prompt_gets_the_answer_of_one_engine(disaggregated: list[Engine], name: str) -> None:
    path, body = ASKS[name]
    async with pair_of(disaggregated) as pair:
        transferred, computed = pair.prompt_tokens("external_kv_transfer"), pair.prompt_tokens("local_compute")
        answer = await pair.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers[PREFILLED] == pair.prefill.id
        usage = usage_of(answer)
        assert pair.prompt_tokens("external_kv_transfer") - transferred >= usage["prompt_tokens"] // 2
        assert pair.prompt_tokens("local_compute") - computed <= BLOCK
        alone = pair.prefill.post(path, body)
        assert plain(answer) == plain(alone)
        assert usage["prompt_tokens"] == usage_of(alone)["prompt_tokens"]
        assert usage["completion_tokens"] == usage_of(alone)["completion_tokens"]
        await eventually(lambda: pair.idle, "the router is idle")


SAMPLED = {"temperature": 1.0, "seed": 5}


@pytest.mark.parametrize(
    "more", [{"n": 2, **SAMPLED}, {"n": 2, "stream": True, **SAMPLED}, {"prompt": [numbers(1, 70), numbers(2, 70)]}]
)
async def test_what_cannot_be_split_is_served_whole_by_the_decode_engine(
    disaggregated: list[Engine], more: dict[str, Any]
) -> None:
    path, body = completion(**more)
    async with pair_of(disaggregated) as pair:
        answer = await pair.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert PREFILLED not in answer.headers
        assert sorted(plain(answer)) == sorted(plain(pair.prefill.post(path, body)))


@pytest.mark.parametrize(
    "forged",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [[1]]}},
        {"vllm_xargs": {"kv_transfer_params": {"do_remote_prefill": True}}},
    ],
)
async def test_a_client_cannot_steer_a_transfer(disaggregated: list[Engine], forged: dict[str, Any]) -> None:
    async with pair_of(disaggregated) as pair:
        for path, body in (chat(**forged), completion(prompt="short", **forged)):
            answer = await pair.client.post(path, json=body)
            # vLLM refuses extra arguments that are objects; what matters is that nothing of it reached the connector.
            assert answer.status_code == 200 or "vllm_xargs" in forged, answer.text
            said = answer.json()
            assert not (said.get("kv_transfer_params") or {}).get("do_remote_prefill")
        assert pair.prefill.running
        assert pair.decode.running
        path, body = chat()
        assert (await pair.client.post(path, json=body)).status_code == 200


async def test_a_client_that_leaves_during_the_prefill_leg(disaggregated: list[Engine]) -> None:
    async with pair_of(disaggregated) as pair:
        pair.prefill.freeze()
        try:
            asking = ask(pair, chat())
            await eventually(lambda: pair.on(pair.prefill), "the prefill leg went out")
            await leave(asking)
            await eventually(lambda: pair.idle, "the router is idle")
        finally:
            pair.prefill.thaw()
        await nothing_runs(pair)


async def test_a_client_that_leaves_before_the_first_token(disaggregated: list[Engine]) -> None:
    async with pair_of(disaggregated) as pair:
        pair.decode.freeze()
        try:
            asking = ask(pair, chat())
            await eventually(lambda: pair.on(pair.decode), "the decode leg went out")
            await leave(asking)
            await eventually(lambda: pair.idle, "the router is idle")
        finally:
            pair.decode.thaw()
        await nothing_runs(pair)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_amid_the_answer(disaggregated: list[Engine], stream: bool) -> None:
    async with pair_of(disaggregated) as pair:
        asking = ask(pair, chat(stream=stream, max_tokens=3000))
        await reports(pair.decode, "vllm:num_requests_running", 1, within_s=120)
        await leave(asking)
        await eventually(lambda: pair.idle, "the router is idle")
        await nothing_runs(pair)


async def test_a_prefill_engine_that_dies_amid_its_leg_and_stays_away(disaggregated: list[Engine], note: Note) -> None:
    async with pair_of(disaggregated) as pair:
        pair.prefill.freeze()
        path, body = completion()
        asking = ask(pair, (path, body))
        await eventually(lambda: pair.on(pair.prefill), "the prefill leg went out")
        pair.prefill.kill()
        answer = await asking
        assert answer.status_code == 200, answer.text
        assert PREFILLED not in answer.headers
        # It is gone now; requests go on as if there were none.
        loop = asyncio.get_running_loop()
        slowest = 0.0
        for _ in range(5):
            started = loop.time()
            path, body = chat(stream=True)
            answer = await pair.client.post(path, json=body)
            slowest = max(slowest, loop.time() - started)
            assert answer.status_code == 200, answer.text
            assert PREFILLED not in answer.headers
            assert answer.text.endswith("data: [DONE]\n\n")
        note(f"prefill engine dead: the slowest of 5 answers took {slowest:.2f} s")
        assert slowest < 30
        pair.prefill.start()
        await asyncio.to_thread(pair.prefill.ready)
        await healthy(pair.router)
        path, body = chat()
        answer = await pair.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers[PREFILLED] == pair.prefill.id


@pytest.mark.full
async def test_a_prefill_engine_that_dies_after_its_leg(disaggregated: list[Engine], note: Note) -> None:
    async with pair_of(disaggregated) as pair:
        path, body = completion()
        pair.decode.freeze()
        try:
            asking = ask(pair, (path, body))
            await eventually(lambda: pair.on(pair.decode), "the decode leg went out")
            pair.prefill.kill()
        finally:
            pair.decode.thaw()
        started = asyncio.get_running_loop().time()
        answer = await asking
        note(f"prefill engine dead after its leg: answered in {asyncio.get_running_loop().time() - started:.1f} s")
        assert answer.status_code == 200, answer.text
        assert plain(answer) == plain(pair.decode.post(path, body))


async def test_a_decode_engine_that_dies_amid_the_answer(disaggregated: list[Engine]) -> None:
    async with pair_of(disaggregated) as pair:
        received = b""
        path, body = chat(stream=True, max_tokens=3000)
        with pytest.raises(httpx.RemoteProtocolError):
            async with pair.client.stream("POST", path, json=body) as answer:
                assert answer.status_code == 200
                async for piece in answer.aiter_raw():
                    if not received:
                        pair.decode.kill()
                    received += piece
        assert b"[DONE]" not in received
        assert "error" in json.loads(received.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
        await eventually(lambda: pair.idle, "the router is idle")
        path, body = chat()
        refused = await pair.client.post(path, json=body)
        assert refused.status_code in (502, 503)
        await eventually(lambda: pair.idle, "the router is idle")
        assert pair.prefill.running
        await blocks_freed(pair.prefill)


def ask(pair: Pair, what: tuple[str, dict[str, Any]]) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(pair.client.post(what[0], json=what[1]))


async def leave(asking: asyncio.Task[httpx.Response]) -> None:
    asking.cancel()
    await asyncio.wait([asking])


async def nothing_runs(pair: Pair) -> None:
    """No request is left on either engine, and what the prefill engine pinned it lets go within its lease."""
    for engine in (pair.prefill, pair.decode):
        for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            await reports(engine, metric, 0)
    await blocks_freed(pair.prefill)


async def blocks_freed(engine: Engine) -> None:
    await reports(engine, "vllm:kv_cache_usage_perc", 0, within_s=LEASE_S * 2 + 30)


def plain(answer: httpx.Response) -> list[str]:
    """What was said, choice by choice: text, tool calls without their ids, logprobs and the reason of the end."""
    choices: dict[int, dict[str, str]] = {}
    for piece in pieces(answer):
        for choice in piece["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            gathered = choices.setdefault(choice["index"], {"text": "", "tools": "", "logprobs": "", "end": ""})
            gathered["text"] += said.get("content") or said.get("text") or ""
            for call in said.get("tool_calls") or []:
                function = call["function"]
                gathered["tools"] += (function.get("name") or "") + (function.get("arguments") or "")
            gathered["logprobs"] += shape(choice.get("logprobs"))
            gathered["end"] += choice.get("finish_reason") or ""
    return [json.dumps(choices[index], sort_keys=True) for index in sorted(choices)]


def shape(logprobs: dict[str, Any] | None) -> str:
    """Of which tokens, not how likely: two engines' last digits differ."""
    if not logprobs:
        return ""
    return "".join(logprobs.get("tokens") or [one["token"] for one in logprobs["content"]])


def usage_of(answer: httpx.Response) -> dict[str, Any]:
    return dict([piece["usage"] for piece in pieces(answer) if piece.get("usage")][-1])


def pieces(answer: httpx.Response) -> list[dict[str, Any]]:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json()]
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]
