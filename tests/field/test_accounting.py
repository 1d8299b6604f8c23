"""Counts that must return to zero, metrics that must stay bounded."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.support.field import CHAT, Field, field, streamed
from tests.support.rawclient import dumped, left, post
from tests.support.stub_engine import DONE, Call, completed, finish, role, serve, token


async def fair(at: Field, requests: int = 40) -> None:
    """Everything is back at zero, and new prompts are placed as if nothing had been."""
    await at.at_rest()
    assert await at.metric("kvrouter_inflight_requests") == 0
    assert await at.metric("kvrouter_inflight_tokens") == 0
    assert await at.metric("kvrouter_inflight_prefill_tokens") == 0
    gate = asyncio.Event()

    async def held(call: Call) -> None:
        await gate.wait()
        await call.answer(completed())

    before = [len(engine.calls) for engine in at.engines]
    for engine in at.engines:
        engine.script = held
    asking = [asyncio.create_task(at.chat(f"fresh prompt {number}")) for number in range(requests)]
    async with asyncio.timeout(30):
        while at.calls < sum(before) + requests:
            await asyncio.sleep(0.01)
    gate.set()
    await asyncio.gather(*asking)
    shares = [len(engine.calls) - count for engine, count in zip(at.engines, before, strict=True)]
    assert min(shares) >= requests / 4
    await at.at_rest()


async def test_lod_01_clients_that_leave_before_the_head_leave_no_count_behind() -> None:
    async def never(call: Call) -> None:
        await call.hang()

    async with field(never, never) as at:
        await left(at.router, *(post(CHAT, dumped(streamed(f"q {number}"))) for number in range(60)), after_s=0.3)
        await fair(at)
        assert await at.metric("kvrouter_requests_total", outcome="client_gone") > 0


async def test_lod_04_an_attempt_that_is_retried_is_counted_once() -> None:
    async def busy(call: Call) -> None:
        await call.answer({"error": {"message": "busy", "code": 503}}, 503)

    async with field(busy, serve) as at:
        for number in range(30):
            assert (await at.chat(f"q {number}")).status_code == 200
            assert await at.metric("kvrouter_inflight_requests") == 0
        await fair(at)


async def test_lod_05_a_stream_counts_until_its_end_however_it_ends() -> None:
    async def without_done(call: Call) -> None:
        await call.stream(role(), token(0), finish())

    async def done_in_two(call: Call) -> None:
        await call.stream(role(), token(0), finish(), DONE[:9], DONE[9:], pause_s=0.002)

    async with field(without_done, done_in_two) as at:
        answers = await asyncio.gather(*(at.chat(f"q {number}", stream=True) for number in range(80)))
        assert {answer.status_code for answer in answers} == {200}
        await fair(at)


async def test_lod_08_one_request_id_for_many_requests_confuses_nothing() -> None:
    async with field(serve, serve) as at:
        same = {"x-request-id": "same"}
        bodies = (streamed(f"q {number}") for number in range(20))
        answers = await asyncio.gather(*(at.client.post(CHAT, json=body, headers=same) for body in bodies))
        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.content.endswith(DONE) for answer in answers)
        await fair(at)


async def test_met_02_what_clients_make_up_makes_no_series() -> None:
    async with field(serve) as at:
        await at.chat()
        before = await series(at)
        for number in range(120):
            await at.client.request("GET", f"/scan/{number}")
            await at.client.request(f"M{number}", f"/v1/{number}")
            await at.client.post(CHAT, json={"model": f"made-up-{number}", "messages": []})
        added = await series(at) - before
        # A new outcome may appear once; nothing may appear per path, method or model.
        assert added < 10
        for line in (await at.client.get("/metrics")).text.splitlines():
            if not line.startswith("#"):
                assert not math.isnan(float(line.rsplit(" ", 1)[1]))


async def series(at: Field) -> int:
    return sum(not line.startswith("#") for line in (await at.client.get("/metrics")).text.splitlines())


@pytest.mark.parametrize("hold", [0.5])
async def test_met_05_the_first_token_is_the_first_content_and_seconds_are_seconds(hold: float) -> None:
    waited = []

    async def script(call: Call) -> None:
        await call.head()
        await asyncio.sleep(0.05)
        await call.chunk(role())
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(hold)
        waited.append(asyncio.get_running_loop().time() - before)
        await call.chunk(token(0))
        await call.chunk(finish() + DONE)
        await call.end()

    async with field(script) as at:
        before = asyncio.get_running_loop().time()
        answer = await at.client.post(CHAT, json=streamed())
        took = asyncio.get_running_loop().time() - before
        assert answer.content == role() + token(0) + finish() + DONE
        ttft = await at.metric("kvrouter_time_to_first_token_seconds_sum")
        assert waited[0] <= ttft <= took
