"""Prefill on one engine, decode on another: each leg may fail in its own way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.field import CHAT, COMPLETIONS, pd_field
from tests.support.stub_engine import DONE, HAND_OFF, JSON, Call, completed, serve

LONG = "a long prompt " * 60


async def decodes_what_is_handed_over(call: Call) -> None:
    """As vLLM's connector: transfer parameters that no prefill engine gave make it wait for ever."""
    params = call.json.get("kv_transfer_params")
    if params is not None and params != HAND_OFF:
        await call.hang()
    await serve(call)


async def refuses(call: Call) -> None:
    await call.answer({"error": {"message": "context too long", "code": 400}}, 400)


async def fails(call: Call) -> None:
    await call.answer({"error": {"message": "broken", "code": 500}}, 500)


async def resets(call: Call) -> None:
    call.reset()


async def half(call: Call) -> None:
    await call.head(200, JSON, length=500)
    await call.peer.send(b'{"kv_transfer')
    call.reset()


@pytest.mark.parametrize("stream", [False, True])
async def test_pds_03_a_prefillers_refusal_is_the_clients_answer(stream: bool) -> None:
    async with pd_field([refuses], [decodes_what_is_handed_over]) as at:
        answer = await at.chat(LONG, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "context too long"
        assert at.engines[1].calls == []


async def test_pds_03_a_prefiller_that_fails_is_replaced_by_another_and_then_by_the_decoder() -> None:
    for failing in (fails, resets, half):
        async with asyncio.timeout(60), pd_field([failing, serve], [decodes_what_is_handed_over]) as at:
            for number in range(4):
                assert (await at.chat(f"{number} {LONG}")).json() == completed()
            assert all(call.json["kv_transfer_params"] == HAND_OFF for call in at.engines[2].calls)
        async with asyncio.timeout(60), pd_field([failing], [decodes_what_is_handed_over]) as at:
            assert (await at.chat(LONG)).json() == completed()
            assert "kv_transfer_params" not in at.engines[1].calls[0].json


def handing(value: Any) -> Callable[[Call], Awaitable[None]]:
    async def script(call: Call) -> None:
        await call.answer(value)

    return script


async def test_pds_04_a_prefill_without_a_hand_off_is_done_again_by_the_decoder() -> None:
    answers: list[Any] = [
        completed(),
        completed(kv_transfer_params=None),
        completed(kv_transfer_params={}),
        completed(kv_transfer_params="x"),
        completed(kv_transfer_params=[1]),
        b"not json",
        b"[]",
        b"",
    ]
    for answer in answers:
        async with asyncio.timeout(60), pd_field([handing(answer)], [decodes_what_is_handed_over]) as at:
            decoded = await at.chat(LONG)
            assert decoded.status_code == 200
            assert decoded.json() == completed()


@pytest.mark.parametrize("stream", [False, True])
async def test_pds_05_every_path_that_generates_is_disaggregated_and_counted(stream: bool) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": LONG}]},
        COMPLETIONS: {"prompt": LONG},
        "/v1/responses": {"input": LONG},
    }
    async with pd_field([serve], [serve]) as at:
        for path, body in bodies.items():
            answer = await at.client.post(path, json={"model": "stub", "stream": stream, **body})
            assert answer.status_code == 200
        prefill, decode = at.engines
        assert [call.path for call in prefill.calls] == list(bodies)
        assert [call.path for call in decode.calls] == list(bodies)
        assert await at.metric("kvrouter_decisions_total", reason="pd") + await at.metric(
            "kvrouter_decisions_total", reason="pd-always"
        ) == len(bodies)


async def test_pds_05_a_path_whose_answers_carry_no_hand_off_is_served_whole_and_counted() -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": LONG}], "max_tokens": 5}
    async with pd_field([serve], [serve]) as at:
        assert (await at.client.post("/v1/messages", json=body)).status_code == 200
        prefill, decode = at.engines
        assert prefill.calls == []
        assert [call.path for call in decode.calls] == ["/v1/messages"]
        assert await at.metric("kvrouter_decisions_total", reason="pd-unsupported") == 1


async def test_pds_06_usage_is_the_decoders_and_the_same_streamed_or_not() -> None:
    usage: dict[str, Any] = {"prompt_tokens": 800, "completion_tokens": 1, "total_tokens": 801}
    usage |= {"prompt_tokens_details": {"cached_tokens": 800}}

    async def prefiller(call: Call) -> None:
        less = {**usage, "prompt_tokens_details": {"cached_tokens": 16}}
        await call.answer(completed(usage=less, kv_transfer_params=HAND_OFF))

    async def decoder(call: Call) -> None:
        if call.json.get("stream"):
            value = b'data: {"choices":[],"usage":' + call.engine.metrics_page + b"}\n\n"
            await call.stream(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n', value, DONE)
        else:
            await call.answer(completed(usage=usage))

    async with pd_field([prefiller], [decoder]) as at:
        at.engines[1].metrics_page = json.dumps(usage).encode()
        whole = (await at.chat(LONG)).json()["usage"]
        answer = await at.chat(LONG, stream=True, stream_options={"include_usage": True})
        event = next(line for line in answer.text.splitlines() if '"usage"' in line)
        assert json.loads(event.removeprefix("data: "))["usage"] == whole == usage


async def test_pds_08_prompts_around_one_block_never_wait_for_a_hand_off() -> None:
    async with asyncio.timeout(60), pd_field([serve], [decodes_what_is_handed_over]) as at:
        for tokens in (1, 15, 16, 17):
            body = {"model": "stub", "prompt": list(range(10, 10 + tokens)), "max_tokens": 2}
            assert (await at.client.post(COMPLETIONS, json=body)).status_code == 200
        # A prompt without a full block before its last token has nothing to ship.
        assert [len(call.json["prompt"]) for call in at.engines[0].calls] == [17]


@pytest.mark.parametrize("stream", [False, True])
async def test_pds_10_a_decoder_that_fails_at_once_costs_no_second_prefill(stream: bool) -> None:
    async def busy(call: Call) -> None:
        await call.answer({"error": {"message": "busy", "code": 503}}, 503)

    async with asyncio.timeout(60), pd_field([serve], [busy, serve]) as at:
        for number in range(4):
            assert (await at.chat(f"{number} {LONG}", stream=stream)).status_code == 200
        assert len(at.engines[0].calls) == 4
        assert all(call.json["kv_transfer_params"] == HAND_OFF for call in at.engines[2].calls)
    async with asyncio.timeout(60), pd_field([serve], [fails]) as at:
        assert (await at.chat(LONG, stream=stream)).status_code == 500
        assert len(at.engines[0].calls) == 1
