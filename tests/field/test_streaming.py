"""Streams: nothing lost, nothing invented, nothing held back."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import httpx
import pytest

from tests.support.field import CHAT, COMPLETIONS, field, streamed
from tests.support.rawclient import connected, dumped, post
from tests.support.stub_engine import DONE, JSON, SSE, Call, Script, event, finish, role, token, tokens_in

EVENTS = [role(), *(token(number) for number in range(12)), finish(), DONE]
WHOLE = b"".join(EVENTS)


async def byte_by_byte(call: Call) -> None:
    await call.stream(*(WHOLE[at : at + 1] for at in range(len(WHOLE))))


async def between_the_line_breaks(call: Call) -> None:
    cuts = [0, *(at + 1 for at in range(len(WHOLE) - 1) if WHOLE[at : at + 2] == b"\n\n"), len(WHOLE)]
    await call.stream(*(WHOLE[start:end] for start, end in pairwise(cuts)), pause_s=0.002)


async def inside_the_field_name(call: Call) -> None:
    parts = WHOLE.replace(b"data:", b"da\0ta:").split(b"\0")
    await call.stream(*parts, pause_s=0.002)


@pytest.mark.parametrize("script", [byte_by_byte, between_the_line_breaks, inside_the_field_name])
async def test_str_02_events_cut_anywhere_arrive_unchanged(script: Script) -> None:
    async with field(script) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert answer.content == WHOLE
        await at.at_rest()


async def nothing_then_a_clean_end(call: Call) -> None:
    await call.stream()


async def nothing_then_reset(call: Call) -> None:
    await call.head()
    await asyncio.sleep(0.02)
    call.reset()


@pytest.mark.parametrize("script", [nothing_then_a_clean_end, nothing_then_reset])
async def test_str_05_a_stream_without_an_event_is_never_made_into_a_completion(script: Script) -> None:
    async with field(script) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert b"[DONE]" not in answer.content
        assert b"finish_reason" not in answer.content
        assert answer.status_code in (200, 502)
        await at.at_rest()


async def test_str_05_an_empty_stream_is_an_engines_failure_while_another_can_serve() -> None:
    async with field(nothing_then_a_clean_end, nothing_then_a_clean_end, nothing_then_reset) as at:
        at.engines[2].script = byte_by_byte
        answers = [await at.client.post(CHAT, json=streamed(f"q {number}")) for number in range(6)]
        assert {answer.content for answer in answers} == {WHOLE}


TEXT = event({"choices": [{"index": 0, "text": "t0 ", "finish_reason": None}]})
ENDS = {
    "chat": (CHAT, streamed(), (role(), token(0), token(1))),
    "completion": (COMPLETIONS, {"model": "stub", "prompt": "p", "stream": True}, (TEXT,)),
}


@pytest.mark.parametrize("name", ENDS)
async def test_str_05_a_stream_that_tells_no_end_is_a_cut_however_well_it_is_framed(name: str) -> None:
    path, body, events = ENDS[name]

    async def script(call: Call) -> None:
        await call.head(200, SSE, length=sum(map(len, events)))
        await call.peer.send(events[0])
        await asyncio.sleep(0.2)
        await call.peer.send(b"".join(events[1:]))

    async with field(script) as at:
        async with at.client.stream("POST", path, json=body) as answer:
            received = b""
            with pytest.raises(httpx.RemoteProtocolError):
                async for chunk in answer.aiter_raw():
                    received += chunk
        assert received.startswith(b"".join(events))
        assert b'"upstream_error"' in received
        assert b"[DONE]" not in received
        await at.at_rest()
        assert await at.metric("kvrouter_requests_total", outcome="cut") == 1


@pytest.mark.parametrize("events", [(role(),), (DONE,), (role(), DONE)], ids=["role", "done", "role and done"])
async def test_str_05_a_stream_that_ends_before_any_content_is_asked_of_another(events: tuple[bytes, ...]) -> None:
    calls: list[Call] = []

    async def script(call: Call) -> None:
        calls.append(call)
        await call.stream(*(events if len(calls) == 1 else EVENTS))

    async with field(script, script) as at:
        assert (await at.client.post(CHAT, json=streamed())).content == WHOLE
        assert len(calls) == 2
    async with field(script) as at:
        calls.clear()
        assert (await at.client.post(CHAT, json=streamed())).status_code == 502


@pytest.mark.parametrize("events", [(role(), token(0), finish()), (token(0), DONE)], ids=["finish", "done"])
async def test_str_05_a_finish_reason_or_done_is_an_end(events: tuple[bytes, ...]) -> None:
    async def script(call: Call) -> None:
        await call.stream(*events)

    async with field(script) as at:
        assert (await at.client.post(CHAT, json=streamed())).content == b"".join(events)
        await at.at_rest()
        assert await at.metric("kvrouter_requests_total", outcome="ok") == 1


@pytest.mark.parametrize("status", [204, 302, 304])
async def test_str_05_a_status_that_is_no_answer_is_passed_on_and_no_success(status: int) -> None:
    async def script(call: Call) -> None:
        await call.peer.send(b"HTTP/1.1 %d Odd\r\nlocation: http://elsewhere/\r\n" % status)
        await call.peer.send(b"\r\n" if status in (204, 304) else b"content-length: 0\r\n\r\n")

    async with field(script) as at:
        assert (await at.chat()).status_code == status
        await at.at_rest()
        assert await at.metric("kvrouter_requests_total", outcome="engine_error", status=str(status)) == 1


async def test_str_06_a_json_refusal_of_a_streaming_request_keeps_status_body_and_type() -> None:
    refusal = {"error": {"message": "m" * 500, "type": "BadRequestError", "param": None, "code": 400}}

    async def script(call: Call) -> None:
        await call.answer(refusal, 400)

    async with field(script) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == refusal
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("first", [role(), token(0)], ids=["role", "content"])
async def test_str_10_each_event_is_forwarded_as_it_comes(first: bytes) -> None:
    goes_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.head()
        await call.chunk(first)
        await goes_on.wait()
        await call.chunk(token(1))
        await call.end()

    async with field(script) as at, at.client.stream("POST", CHAT, json=streamed()) as answer:
        pieces = answer.aiter_raw()
        async with asyncio.timeout(5):
            # The engine sends its second event only after the client has the first.
            assert await anext(pieces) == first
            goes_on.set()
            assert await anext(pieces) == token(1)


async def test_str_12_an_error_inside_a_stream_is_relayed_and_counts_as_failed() -> None:
    events = [token(0), token(1), token(2), event({"error": {"message": "engine", "code": 500}}), DONE]

    async def script(call: Call) -> None:
        await call.stream(*events)

    async with field(script) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert answer.content == b"".join(events)
        assert await at.metric("kvrouter_requests_total", outcome="engine_error") == 1
        assert await at.metric("kvrouter_requests_total", outcome="ok") == 0


async def test_str_13_a_long_stream_arrives_whole_with_its_end() -> None:
    async def script(call: Call) -> None:
        await call.stream(*(token(number) for number in range(40)), DONE, pause_s=0.03)

    async with field(script) as at, connected(at.router) as client:
        answer = await client.ask(post(CHAT, dumped(streamed())))
        assert answer.complete
        assert tokens_in(answer.body) == list(range(40))
        assert answer.body.endswith(DONE)


async def test_str_06_an_answer_with_a_length_is_not_forced_into_a_stream() -> None:
    body = json.dumps({"choices": [{"message": {"content": "é" * 4000}, "finish_reason": "stop"}]}).encode()

    async def script(call: Call) -> None:
        await call.head(200, JSON, length=len(body))
        for at in range(0, len(body), 997):
            await call.peer.send(body[at : at + 997])
            await asyncio.sleep(0)

    async with field(script) as at:
        answer = await at.client.post(CHAT, json=streamed())
        assert answer.content == body
