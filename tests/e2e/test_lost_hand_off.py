"""A prefiller that is gone before its KV was read: whoever decodes does not wait for it, and prefills by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadtest.simulator import RunningEngine
from loadtest.simulator.settings import Faults
from tests.support.field import CHAT, pd_field, until
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import prefill_and_decode
from tests.support.stub_engine import HAND_OFF, Call, completed, serve

LONG = "a long prompt " * 60
QUICK: dict[str, Any] = {"pool__probe_interval_s": 0.05, "pool__unhealthy_after": 2}
SPLIT: dict[str, Any] = {
    "scheduling__plugins": [{"type": "always-disagg-pd-decider"}],
    "scheduling__decider": "always-disagg-pd-decider",
}
NEVER_S = 600.0
"""How long these engines would try to reach the one that is gone."""


def body(stream: bool) -> dict[str, Any]:
    return {
        "model": "sim-model",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 4,
        "stream": stream,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decoder_does_not_wait_for_the_kv_of_a_prefiller_that_died(stream: bool) -> None:
    flags = {**QUICK, **SPLIT, "index__speculative_ttl_s": 0.2}
    async with prefill_and_decode(1, 1, transfer_failure_s=NEVER_S) as (prefill, decode):
        # The decoder looks at its request a little later than it gets it: meanwhile the prefiller dies.
        decode[0].engine.set_faults(Faults(delay_head_s=1.0))
        async with (
            running_router(endpoints(prefill=prefill, decode=decode), **flags) as router,
            client_of(router) as client,
        ):
            await until(lambda: all(state.index == "exact" for state in router.app.pool.snapshot()))
            asking = asyncio.create_task(client.post(CHAT, json=body(stream)))
            await until(lambda: router.app.inflight.get(router.endpoint_of(decode[0])).requests)
            await prefill[0].kill()
            answer = await asking
            assert answer.status_code == 200
            assert "x-kvrouter-prefill-endpoint" not in answer.headers
            page = (await client.get("/metrics")).text
            counted = f'endpoint="{router.endpoint_of(decode[0])}",kind="orphaned",leg="decode"'
            assert f"kvrouter_upstream_errors_total{{{counted}}} 1.0" in page
            await until(lambda: router.app.inflight.snapshot() == {} and not decode[0].engine.in_flight)


async def test_a_decoder_that_has_read_the_kv_goes_on_without_the_prefiller() -> None:
    flags = {**QUICK, **SPLIT, "index__speculative_ttl_s": 0.1}
    async with prefill_and_decode(1, 1, transfer_failure_s=NEVER_S) as (prefill, decode):
        decode[0].engine.set_faults(Faults(delay_first_byte_s=1.5))
        async with (
            running_router(endpoints(prefill=prefill, decode=decode), **flags) as router,
            client_of(router) as client,
        ):
            await until(lambda: all(state.index == "exact" for state in router.app.pool.snapshot()))
            asking = asyncio.create_task(client.post(CHAT, json=body(stream=False)))
            await until(lambda: not prefill[0].engine.ranks[0].core.pinned and read_by(decode[0]))
            await prefill[0].kill()
            await until(lambda: not router.app.pool.usable(router.endpoint_of(prefill[0])))
            answer = await asking
            assert answer.status_code == 200
            assert answer.headers["x-kvrouter-prefill-endpoint"] == router.endpoint_of(prefill[0])


def read_by(engine: RunningEngine) -> bool:
    return sum(engine.engine.ranks[0].stats.transfers.counts) > 0


async def waits_for_its_kv(call: Call) -> None:
    if call.json.get("kv_transfer_params") == HAND_OFF:
        await call.hang()
    await serve(call)


@pytest.mark.parametrize("how", ["unhealthy", "another process", "removed"])
async def test_however_the_prefiller_goes_a_stream_that_waits_for_its_kv_is_begun_anew(how: str) -> None:
    async with pd_field([serve], [waits_for_its_kv], pool__scrape_interval_s=0.05, **QUICK) as at:
        prefiller, decoder = at.engines
        prefiller.metrics_page = b"process_start_time_seconds 1\n"
        await until(lambda: at.router.app.pool.snapshot()[0].process_start == 1)
        asking = asyncio.create_task(at.chat(LONG, stream=True))
        await until(lambda: decoder.calls)
        if how == "unhealthy":
            prefiller.healthy = False
        elif how == "removed":
            kept = at.router.app.pool.record(decoder.id)
            assert kept is not None
            at.router.app.pool.set_endpoints([kept.spec])
        else:
            prefiller.metrics_page = b"process_start_time_seconds 2\n"
        answer = await asking
        assert answer.status_code == 200
        await at.at_rest()
        assert [call.aborted for call in decoder.calls] == [True, False]
        assert "kv_transfer_params" not in decoder.calls[1].json


async def test_a_prefill_leg_leaves_an_engine_that_hangs_behind_a_living_server() -> None:
    async def hangs(call: Call) -> None:
        await call.hang()

    async def works(call: Call) -> None:
        if call.path == "/v1/messages":
            await call.stream(*[b": working\n\n"] * 60, pause_s=0.05)
        await serve(call)

    flags = {"pool__stall_after_s": 0.5, "pool__scrape_interval_s": 0.1}
    async with pd_field([hangs], [works], **flags) as at:
        prefiller, decoder = at.engines
        for engine in at.engines:
            engine.metrics_page = b'vllm:num_requests_running{engine="0"} 1\n'
        message = {"model": "stub", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": True}
        working = asyncio.create_task(at.client.post("/v1/messages", json=message))
        await until(lambda: decoder.calls)
        assert (await at.chat(LONG)).json() == completed()
        await until(lambda: [call.aborted for call in prefiller.calls] == [True])
        assert (await working).status_code == 200
        await at.at_rest()


async def test_a_whole_answer_of_an_engine_without_kv_events_is_not_taken_for_one_that_waits() -> None:
    done = asyncio.Event()

    async def decodes(call: Call) -> None:
        await done.wait()
        await call.answer(completed())

    async with pd_field([serve], [decodes], **QUICK) as at:
        prefiller, decoder = at.engines
        asking = asyncio.create_task(at.chat(LONG))
        await until(lambda: decoder.calls)
        prefiller.healthy = False
        await until(lambda: not at.router.app.pool.usable(prefiller.id))
        await asyncio.sleep(0.6)
        done.set()
        assert (await asking).json() == completed()
        assert len(decoder.calls) == 1
