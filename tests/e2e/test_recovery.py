"""The ladder of recovery: whoever waits for an endpoint that stops answering is woken, and goes to the next."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.field import CHAT, field, pd_field, streamed, until
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines, http
from tests.support.stub_engine import HAND_OFF, Call, completed, finish, role, serve, token, tokens_in

LONG = "a long prompt " * 60
QUICK = {
    "pool__probe_interval_s": 0.05,
    "pool__unhealthy_after": 2,
    "upstream__unhealthy_idle_timeout_s": 0.3,
}


async def hangs(call: Call) -> None:
    await call.hang()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_first_byte_leaves_an_endpoint_that_turns_unhealthy(stream: bool) -> None:
    async with field(hangs, hangs, **QUICK) as at:
        asking = asyncio.create_task(at.chat(stream=stream))
        await until(lambda: at.calls)
        frozen, other = at.engines if at.engines[0].calls else at.engines[::-1]
        other.script = serve
        frozen.healthy = False
        assert (await asking).status_code == 200
        await until(lambda: frozen.aborted)
        assert await at.metric("kvrouter_upstream_errors_total", kind="abandoned") == 1
        await at.at_rest()


async def test_a_prefill_leg_leaves_a_frozen_engine_for_another_and_then_for_the_decoder() -> None:
    async with pd_field([hangs, hangs], [serve], **QUICK) as at:
        asking = asyncio.create_task(at.chat(LONG))
        await until(lambda: at.calls)
        frozen, other = at.engines[:2] if at.engines[0].calls else at.engines[1::-1]
        frozen.healthy = False
        await until(lambda: other.calls)
        other.healthy = False
        assert (await asking).json() == completed()
        assert "kv_transfer_params" not in at.engines[2].calls[0].json
        await at.at_rest()


async def test_a_decode_leg_that_leaves_a_frozen_engine_is_prefilled_anew_where_it_goes() -> None:
    async with pd_field([serve], [hangs, hangs], **QUICK) as at:
        asking = asyncio.create_task(at.chat(LONG))
        await until(lambda: at.calls == 2)
        frozen, other = at.engines[1:] if at.engines[1].calls else at.engines[:0:-1]
        other.script = serve
        frozen.healthy = False
        answer = await asking
        assert answer.json() == completed()
        assert frozen.calls[0].json["kv_transfer_params"] == HAND_OFF
        # The frozen engine may have read the KV, and whoever prefilled it has then let go of it.
        assert "kv_transfer_params" not in other.calls[0].json
        assert "x-kvrouter-prefill-endpoint" not in answer.headers
        await at.at_rest()


async def test_a_hand_off_that_the_decoder_cannot_read_is_prefilled_by_the_decoder() -> None:
    async def cannot_read(call: Call) -> None:
        if "kv_transfer_params" in call.json:
            await call.answer({"error": {"message": "KV load failure", "code": 500}}, 500)
        else:
            await serve(call)

    async with pd_field([serve], [cannot_read]) as at:
        assert (await at.chat(LONG)).json() == completed()
        assert len(at.engines[1].calls) == 2
        assert await at.metric("kvrouter_upstream_errors_total", kind="hand-off") == 1


async def test_a_stream_that_has_begun_is_cut_visibly_once_its_endpoint_is_down_and_silent() -> None:
    async def begins(call: Call) -> None:
        await call.head()
        await call.chunk(role())
        await call.chunk(token(0))
        await call.hang()

    async with field(begins, **QUICK) as at:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with at.client.stream("POST", CHAT, json=streamed()) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
                    at.engine.healthy = False
        assert tokens_in(received) == [0]
        assert b'"error"' in received
        assert b"[DONE]" not in received
        await until(lambda: at.engine.aborted)
        assert await at.metric("kvrouter_requests_total", outcome="cut") == 1
        await at.at_rest()


async def test_an_engine_too_busy_for_its_probes_keeps_its_requests_while_tokens_come() -> None:
    async def slow_and_steady(call: Call) -> None:
        await call.stream(role(), *(token(number) for number in range(12)), finish(), pause_s=0.1)

    flags: dict[str, Any] = {**QUICK, "pool__probe_timeout_s": 0.6}
    async with field(slow_and_steady, **flags) as at:
        asking = asyncio.create_task(at.chat(stream=True))
        await until(lambda: at.calls)
        at.engine.health_hangs = True
        assert tokens_in((await asking).content) == list(range(12))
        assert at.router.app.pool.snapshot()[0].health.value == "healthy"


async def test_a_fallback_that_went_down_after_the_decision_is_passed_over() -> None:
    async def falters(call: Call) -> None:
        gate.set()
        await release.wait()
        call.reset()

    gate, release = asyncio.Event(), asyncio.Event()
    flags = {**QUICK, "retries__max_attempts": 2}
    async with field(falters, falters, falters, **flags) as at:
        asking = asyncio.create_task(at.chat())
        await gate.wait()
        asked = next(engine for engine in at.engines if engine.calls)
        one, two = (engine for engine in at.engines if engine is not asked)
        two.script = serve
        one.healthy = False
        await until(lambda: not at.router.app.pool.usable(one.id))
        release.set()
        assert (await asking).status_code == 200
        assert one.calls == []


@pytest.mark.parametrize("how", ["/pause?mode=keep", "/sleep"])
async def test_requests_leave_an_engine_that_is_paused_or_put_to_sleep_and_it_comes_back(how: str) -> None:
    flags = {"pool__probe_interval_s": 0.1, "tokenization__default": None, "tokenization__remote": False}
    body = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    async with engines(2, kv_events=False) as running, running_router(endpoints(running), **flags) as router:
        held, other = running
        async with http(held.url) as control, client_of(router) as client:
            router.app.pool.drain(router.endpoint_of(other))
            await control.post(how)
            asking = asyncio.create_task(client.post(CHAT, json=body))
            await until(lambda: router.app.inflight.snapshot())
            router.app.pool.drain(router.endpoint_of(other), draining=False)
            assert (await asking).headers["x-kvrouter-endpoint"] == router.endpoint_of(other)
            assert not router.app.pool.usable(router.endpoint_of(held))
            await control.post("/resume" if "pause" in how else "/wake_up")
            await until(lambda: router.app.pool.usable(router.endpoint_of(held)))


async def test_an_engine_that_hangs_behind_a_living_server_is_left_while_others_work() -> None:
    async def works(call: Call) -> None:
        await call.stream(role(), *(token(number) for number in range(40)), finish(), pause_s=0.05)

    flags = {"pool__stall_after_s": 0.5, "pool__scrape_interval_s": 0.1}
    async with field(hangs, hangs, **flags) as at:
        for engine in at.engines:
            engine.metrics_page = b'vllm:num_requests_running{engine="0"} 1\n'
        asking = asyncio.create_task(at.chat("one", stream=True))
        await until(lambda: at.calls)
        hung, other = at.engines if at.engines[0].calls else at.engines[::-1]
        other.script = works
        # Work for the other one: the hanging one is taken out in the meantime.
        at.router.app.pool.drain(hung.id)
        working = asyncio.create_task(at.chat("two", stream=True))
        await until(lambda: other.calls)
        at.router.app.pool.drain(hung.id, draining=False)
        assert (await asking).status_code == 200
        await until(lambda: hung.aborted)
        assert (await working).status_code == 200
        await at.at_rest()


async def test_an_engine_that_answers_nothing_but_errors_is_taken_out_and_a_busy_one_is_not() -> None:
    async def errs(call: Call) -> None:
        await call.answer({"error": {"message": "broken", "code": call.engine.models[0]}}, 500)

    async def busy(call: Call) -> None:
        await call.answer({"error": {"message": "busy", "code": 503}}, 503)

    async with field(errs, busy, serve, pool__probe_interval_s=30) as at:
        bad, full, _good = at.engines
        for number in range(60):
            await at.chat(f"q {number}")
        assert not at.router.app.pool.usable(bad.id)
        assert len(bad.calls) == 5
        assert len(full.calls) > 5
        assert at.router.app.pool.usable(full.id)


@pytest.mark.parametrize("retried", [True, False])
async def test_a_429_goes_to_another_endpoint_where_the_setting_says_so(retried: bool) -> None:
    async def full(call: Call) -> None:
        await call.answer({"error": {"message": "slow down", "code": 429}}, 429)

    statuses = [429, 502, 503, 504] if retried else [502, 503, 504]
    async with field(full, full, serve, retries__on_status=statuses) as at:
        answers = {(await at.chat(f"q {number}")).status_code for number in range(12)}
        assert answers == ({200} if retried else {200, 429})
        # Retries are counted as what they are, and a refusal is nothing against the endpoint.
        again = await at.metric("kvrouter_dispatches_total", fallback="true")
        assert again == (at.calls - 12 if retried else 0)
        assert all(at.router.app.pool.usable(engine.id) for engine in at.engines)


async def test_the_ladder_has_one_end_for_both_legs() -> None:
    """Prefill, again, local prefill, another decoder: within one time for retries, counted from the arrival."""

    async def slowly_broken(call: Call) -> None:
        await asyncio.sleep(0.3)
        call.reset()

    flags = {"retries__within_s": 0.5, "retries__backoff_ms": 1.0, "pd__retries": 5, "retries__max_attempts": 9}
    async with pd_field([slowly_broken] * 4, [slowly_broken] * 4, **flags) as at:
        answer = await at.chat(LONG)
        assert answer.status_code == 502
        prefills = sum(len(engine.calls) for engine in at.engines[:4])
        assert prefills == 2
        # The first decode attempt is no retry: the client has had no answer yet.
        assert at.calls - prefills == 1
