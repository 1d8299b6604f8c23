"""Engines that fail before and after the first byte."""

from __future__ import annotations

import asyncio
import random
import time

import httpx
import pytest

from router.core import Health
from tests.support.field import CHAT, ESTIMATED, field, streamed, until
from tests.support.rawserver import Peer, RawServer
from tests.support.router import client_of, running_router
from tests.support.stub_engine import DONE, Call, StubEngine, completed, finish, role, serve, token, tokens_in


async def reset(call: Call) -> None:
    call.reset()


async def test_ret_02_refusals_of_requests_are_passed_on_and_not_held_against_the_engine() -> None:
    async def script(call: Call) -> None:
        if call.number < 15:
            await call.answer({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, 400)
        else:
            await serve(call)

    async with field(script) as at:
        statuses = [(await at.chat(f"q {number}")).status_code for number in range(16)]
        assert statuses == [400] * 15 + [200]
        assert at.calls == 16


@pytest.mark.parametrize("how", ["fin", "rst", "on-next-head"])
async def test_ret_05_a_connection_that_closes_while_idle_is_replaced_unseen(how: str) -> None:
    rng = random.Random(5)

    async def script(peer: Peer) -> None:
        line = (await peer.request()).line
        body = b'{"data":[{"id":"stub"}]}' if b"/v1/models" in line else b'{"choices":[]}'
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        await peer.send(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        if how == "on-next-head":
            await peer.head()
            peer.reset()
        else:
            await asyncio.sleep(rng.uniform(0, 0.005))
            if how == "rst":
                peer.reset()

    async with (
        RawServer(script) as engine,
        running_router([{"url": engine.url}], **ESTIMATED) as router,
        client_of(router) as client,
    ):
        statuses = []
        for number in range(40):
            answer = await client.post(CHAT, json={"messages": [{"role": "user", "content": f"q {number}"}]})
            statuses.append(answer.status_code)
            await asyncio.sleep(rng.uniform(0.002, 0.01))
        assert statuses == [200] * 40


async def test_ret_06_a_stream_that_was_begun_is_not_begun_again_elsewhere() -> None:
    async def five_then_cut(call: Call) -> None:
        await call.head()
        for number in range(5):
            await call.chunk(token(number))
            await asyncio.sleep(0.01)
        call.reset()

    async with field(five_then_cut, five_then_cut) as at:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with at.client.stream("POST", CHAT, json=streamed()) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        assert tokens_in(received) == list(range(5))
        assert b"[DONE]" not in received
        assert b'"error"' in received
        assert at.calls == 1
        assert await at.metric("kvrouter_requests_total", outcome="cut") == 1


async def test_ret_06_a_whole_answer_that_breaks_off_unseen_is_asked_of_another() -> None:
    async def half(call: Call) -> None:
        await call.head(200, ((b"content-type", b"application/json"),), length=100)
        await call.peer.send(b'{"choices":[')
        await asyncio.sleep(0.05)
        call.reset()

    async with field(half, half, serve) as at:
        answers = [await at.chat(f"q {number}") for number in range(4)]
        assert [answer.json() for answer in answers] == [completed()] * 4


@pytest.mark.parametrize("stream", [False, True])
async def test_ret_07_when_everybody_resets_the_attempts_are_bounded(stream: bool) -> None:
    async with field(reset, reset, reset, reset) as at:
        before = time.monotonic()
        answer = await at.chat(stream=stream)
        assert answer.status_code in (502, 503)
        assert answer.json()["error"]["type"] in ("upstream_error", "service_unavailable")
        assert time.monotonic() - before < 10
        assert at.calls <= 8


@pytest.mark.parametrize("known", [True, False], ids=["seen-before", "never-seen"])
async def test_ret_09_with_nobody_to_serve_the_answer_is_a_retryable_503(known: bool) -> None:
    async with StubEngine() as one, StubEngine() as other:
        if not known:
            await one.close_listener()
            await other.close_listener()
        specs = [{"url": one.url}, {"url": other.url}]
        async with running_router(specs, **ESTIMATED) as router, client_of(router) as client:
            if known:
                await one.close_listener()
                await other.close_listener()
            for _ in range(5):
                async with asyncio.timeout(5):
                    answer = await client.post(CHAT, json={"model": "stub", "messages": []})
                assert answer.status_code in (502, 503)
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_ret_11_an_engine_that_comes_back_is_tried_by_few_first() -> None:
    hangs = asyncio.Event()

    async def first_resets_then_hangs(call: Call) -> None:
        if hangs.is_set():
            await call.hang()
        call.reset()

    flags = {"pool__probe_interval_s": 0.2, "upstream__first_byte_timeout_s": 2.0}
    async with field(first_resets_then_hangs, serve, **flags) as at:
        sick = at.engine

        def state() -> str:
            return at.router.app.pool.snapshot()[0].health.value

        number = 0
        while state() != "unhealthy":
            await at.chat(f"q {number}")
            number += 1
            assert number < 100
        hangs.set()
        await until(lambda: state() == "healthy")
        before = len(sick.calls)
        answers = await asyncio.gather(*(at.chat(f"herd {number}") for number in range(40)))
        assert len(sick.calls) - before <= 3
        assert sum(answer.status_code == 200 for answer in answers) >= 37


async def test_ret_12_each_way_to_fail_has_its_own_status() -> None:
    async def silent(call: Call) -> None:
        await call.hang()

    async def malformed(call: Call) -> None:
        await call.peer.send(b"XYZ\r\n")

    for script, expected in ((silent, {504}), (malformed, {502})):
        async with field(script, upstream__first_byte_timeout_s=0.5) as at:
            assert (await at.chat()).status_code in expected
    async with field(serve) as at:
        await at.engine.close_listener()
        assert (await at.chat()).status_code in {502, 503}


NO_STATUS = b"HTTP/1.1 %d Odd\r\ncontent-length: 2\r\n\r\n{}"
MALFORMED = {
    "garbage": (b"XYZ\r\n", "does not begin like HTTP"),
    "no status": (NO_STATUS % 999, "status 999"),
    "just above": (NO_STATUS % 600, "status 600"),
    "switching": (b"HTTP/1.1 101 Switching\r\n\r\n", "status 101"),
    "endless head": (b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"a" * 70_000, "no body byte within"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_ret_12_what_is_no_http_goes_to_another_engine_and_its_kind_is_told(name: str) -> None:
    said, why = MALFORMED[name]

    async def odd(call: Call) -> None:
        await call.peer.send(said)
        await call.hang()

    async with field(odd) as at:
        answer = await at.chat()
        assert answer.status_code == 502
        message = answer.json()["error"]["message"]
        assert message.startswith("The endpoint that was asked gave no usable answer: ")
        assert why in message
    met: list[Call] = []

    async def odd_at_first(call: Call) -> None:
        met.append(call)
        await (odd if len(met) == 1 else serve)(call)

    async with field(odd_at_first, odd_at_first) as at:
        assert (await at.chat()).status_code == 200
        assert len({call.engine for call in met}) == 2
        await at.at_rest()


async def test_ret_12_the_last_of_several_failures_is_told() -> None:
    async def empty(call: Call) -> None:
        await call.stream()

    async with field(empty, empty) as at:
        answer = await at.chat(stream=True)
        assert answer.status_code == 502
        assert answer.json()["error"]["message"] == (
            "None of 2 attempts brought a usable answer; the last one: the engine's answer was empty."
        )


# An engine that is told to stop ends its streams with this, under status 200 (vLLM 0.32, observed).


@pytest.mark.parametrize("stream", [False, True])
async def test_ret_06_an_abort_that_nobody_asked_for_goes_to_another_engine_while_nothing_was_sent(
    stream: bool,
) -> None:
    async def aborts(call: Call) -> None:
        if call.json.get("stream"):
            await call.stream(role(), finish("abort"), DONE, pause_s=0.01)
        else:
            await call.answer(completed("", "abort"))

    async with field(aborts, aborts, serve) as at:
        for number in range(4):
            answer = await at.chat(f"q {number}", stream=stream)
            assert answer.status_code == 200
            assert b"abort" not in answer.content
            assert b"stop" in answer.content
        assert await at.metric("kvrouter_upstream_errors_total", kind="abort") >= 1
        assert await at.metric("kvrouter_requests_total", outcome="ok") == 4
        await at.at_rest()


async def test_ret_06_an_abort_in_the_middle_is_a_visible_cut() -> None:
    async def aborts(call: Call) -> None:
        await call.stream(role(), token(0), token(1), finish("abort"), DONE, pause_s=0.02)

    async with field(aborts, serve) as at:
        at.engines[1].script = aborts
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with at.client.stream("POST", CHAT, json=streamed()) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        assert tokens_in(received) == [0, 1]
        assert b"[DONE]" not in received
        assert b'"error"' in received
        assert at.calls == 1
        assert await at.metric("kvrouter_requests_total", outcome="cut") == 1
        await at.at_rest()


async def test_ret_06_an_abort_of_everybody_is_an_error_and_no_empty_success() -> None:
    async def aborts(call: Call) -> None:
        await call.stream(role(), finish("abort"), DONE)

    async with field(aborts, aborts) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert answer.status_code == 502
        assert b"[DONE]" not in answer.content


async def test_ret_02_a_request_that_breaks_every_engine_takes_none_out() -> None:
    async def script(call: Call) -> None:
        if b"poison" in call.body:
            await call.answer({"error": {"message": "broken", "code": 500}}, 500)
        else:
            await serve(call)

    async with field(script, script, script) as at:
        for number in range(30):
            assert (await at.chat(f"poison {number % 3}")).status_code == 500
            assert all(state.health is Health.HEALTHY for state in at.router.app.pool.snapshot())
        assert (await at.chat()).status_code == 200


async def test_ret_02_a_stored_response_that_cannot_be_read_takes_no_engine_out() -> None:
    async def script(call: Call) -> None:
        if call.path.startswith("/v1/responses/"):
            await call.answer({"error": {"message": "broken", "code": 500}}, 500)
        else:
            await serve(call)

    async with field(script, script) as at:
        for _ in range(30):
            assert (await at.client.get("/v1/responses/resp_1")).status_code == 500
        assert all(state.health is Health.HEALTHY for state in at.router.app.pool.snapshot())
        assert (await at.chat()).status_code == 200


async def test_ret_02_an_engine_that_fails_where_another_does_not_is_taken_out() -> None:
    async def broken(call: Call) -> None:
        await call.answer({"error": {"message": "broken", "code": 500}}, 500)

    async with field(broken, serve) as at:
        async with asyncio.timeout(20):
            while at.router.app.pool.usable(at.engine.id):
                await at.chat()
        assert {(await at.chat()).status_code for _ in range(3)} == {200}
