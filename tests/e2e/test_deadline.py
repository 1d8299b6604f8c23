"""A request's own deadline ends it wherever it is: waiting for room, in either leg, between attempts, in its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.field import CHAT, Field, chat, field, pd_field, streamed, until
from tests.support.stub_engine import DONE, Call, completed, role, serve, token, tokens_in

LONG = "a long prompt " * 60
TRUSTED: dict[str, Any] = {"server__trusted_peers": ["127.0.0.1"]}
SOON = {"x-kvrouter-deadline-ms": "1000"}


async def hangs(call: Call) -> None:
    await call.hang()


async def assert_too_late(at: Field, answer: httpx.Response) -> None:
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("deadline_exceeded", "deadline_exceeded")
    await at.at_rest()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["x-kvrouter-deadline-ms", "x-envoy-expected-rq-timeout-ms"])
async def test_a_request_that_no_engine_answers_in_time_is_a_504_and_its_engine_is_stopped(
    name: str, stream: bool
) -> None:
    async with field(hangs, **TRUSTED) as at:
        await assert_too_late(at, await at.client.post(CHAT, json=chat(stream=stream), headers={name: "1000"}))
        assert at.engine.aborted == 1
        assert not {"x-kvrouter-deadline-ms", name} & {each.decode() for each, _ in at.engine.calls[0].request.headers}


async def test_a_stream_is_cut_visibly_at_the_deadline() -> None:
    async def begins(call: Call) -> None:
        await call.head()
        await call.chunk(role())
        await call.chunk(token(0))
        await call.hang()

    async with field(begins, **TRUSTED) as at:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with at.client.stream("POST", CHAT, json=streamed(), headers=SOON) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        assert tokens_in(received) == [0]
        assert b'"deadline_exceeded"' in received
        assert DONE not in received
        assert await at.metric("kvrouter_requests_total", outcome="cut") == 1
        await at.at_rest()


async def test_a_request_that_waits_for_room_leaves_the_queue_at_its_deadline() -> None:
    flags: dict[str, Any] = {
        **TRUSTED,
        "flow_control__detector": "concurrency",
        "flow_control__max_requests_per_endpoint": 1,
        "flow_control__holdback": 0,
    }
    async with field(hangs, **flags) as at:
        first = asyncio.create_task(at.chat())
        await until(lambda: at.calls)
        answer = await at.client.post(CHAT, json=chat(), headers=SOON)
        assert answer.status_code == 504
        assert at.router.app.gate.queued == 0
        assert at.calls == 1
        first.cancel()
        await asyncio.wait([first])
        await at.at_rest()


async def test_neither_leg_outlives_the_deadline() -> None:
    async with pd_field([hangs], [serve], **TRUSTED) as at:
        await assert_too_late(at, await at.client.post(CHAT, json=chat(LONG), headers=SOON))
        assert at.engines[1].calls == []
    async with pd_field([serve], [hangs], **TRUSTED) as at:
        await assert_too_late(at, await at.client.post(CHAT, json=chat(LONG), headers=SOON))


async def test_no_attempt_begins_after_the_deadline() -> None:
    async def slowly_broken(call: Call) -> None:
        await asyncio.sleep(0.6)
        call.reset()

    flags = {**TRUSTED, "retries__max_attempts": 9, "retries__backoff_ms": 1.0, "pool__unhealthy_after": 100}
    async with field(*[slowly_broken] * 6, **flags) as at:
        await assert_too_late(at, await at.client.post(CHAT, json=chat(), headers=SOON))
        assert at.calls <= 2


async def test_an_answer_in_time_is_as_if_no_deadline_had_been_given() -> None:
    async with field(serve, **TRUSTED) as at:
        answer = await at.client.post(CHAT, json=chat(), headers={"x-kvrouter-deadline-ms": "30000"})
        assert answer.json() == completed()


async def test_who_has_no_right_to_a_deadline_is_served_without_and_nothing_of_it_reaches_the_engine() -> None:
    async with field(serve) as at:
        assert (await at.client.post(CHAT, json=chat(), headers={"x-kvrouter-deadline-ms": "0.001"})).status_code == 200
        assert "x-kvrouter-deadline-ms" not in {each.decode() for each, _ in at.engine.calls[0].request.headers}


@pytest.mark.parametrize(
    "fields",
    [
        [("x-kvrouter-deadline-ms", "soon")],
        [("x-kvrouter-deadline-ms", "100"), ("x-kvrouter-deadline-ms", "5000")],
        [("x-llm-d-inference-ttl", "bogus")],
        [("x-llm-d-inference-ttl", "-2s")],
    ],
)
async def test_a_time_that_cannot_be_meant_is_refused_with_the_mend(fields: list[tuple[str, str]]) -> None:
    async with field(serve, **TRUSTED) as at:
        answer = await at.client.post(CHAT, json=chat(), headers=fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == fields[0][0]
        assert at.calls == 0
