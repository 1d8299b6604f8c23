"""Slow readers, bursts and a busy loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.field import CHAT, COMPLETIONS, chat, field, streamed
from tests.support.rawclient import connected, dumped, post
from tests.support.stub_engine import DONE, SSE, Call, completed, token

MEGABYTE = 1024 * 1024


async def test_bpr_01_a_slow_reader_stops_the_reading_from_the_engine() -> None:
    size = 150 * MEGABYTE
    piece = (b": " + b"x" * 65533 + b"\n") * 16

    async def script(call: Call) -> None:
        await call.head(200, SSE, length=size + len(DONE))
        for _ in range(size // len(piece)):
            await call.peer.send(piece)
        await call.peer.send(DONE)

    async with field(script) as at, connected(at.router, receive_buffer=64 * 1024) as client:
        await client.send(post(CHAT, dumped(streamed())))
        await client.head()
        sent = -1
        # Still when nothing more is taken for half a second: whatever the kernel and the router hold is full.
        while sent != at.engine.sent_bytes:
            sent = at.engine.sent_bytes
            await asyncio.sleep(0.5)
        assert 0 < sent < 24 * MEGABYTE
        received, last = 0, b""
        while not last.endswith(b"0\r\n\r\n"):
            data = await client.reader.read(MEGABYTE)
            assert data
            received += len(data)
            last = (last + data)[-64:]
        assert received > size
        assert DONE in last


async def test_bpr_03_liveness_answers_while_streams_run_and_a_large_prompt_is_handled() -> None:
    async def script(call: Call) -> None:
        if call.json.get("stream"):
            await call.stream(*(token(number) for number in range(20)), DONE, pause_s=0.1)
        else:
            await call.answer(completed())

    async with field(script) as at:
        streams = [asyncio.create_task(at.client.post(CHAT, json=streamed(f"q {number}"))) for number in range(64)]
        large = asyncio.create_task(at.chat("lorem ipsum dolor " * (2 * MEGABYTE // 18)))
        answered = 0
        while not large.done() or not all(stream.done() for stream in streams):
            # A kubelet's usual patience is 1 s; engines and clients share this process with the router here.
            async with asyncio.timeout(5):
                assert (await at.client.get("/health")).status_code == 200
            answered += 1
            await asyncio.sleep(0.02)
        assert answered > 5
        assert {stream.result().status_code for stream in streams} == {200}
        assert large.result().status_code == 200


@pytest.mark.parametrize("engines", [2, 3])
async def test_bpr_05_a_burst_sees_the_requests_that_were_placed_an_instant_before(engines: int) -> None:
    gate = asyncio.Event()

    async def script(call: Call) -> None:
        await gate.wait()
        await call.answer(completed())

    async with field(*[script] * engines) as at:
        asking = [asyncio.create_task(at.chat(f"prompt {number}")) for number in range(24)]
        async with asyncio.timeout(20):
            while at.calls < 24:
                await asyncio.sleep(0.01)
        shares = [len(engine.calls) for engine in at.engines]
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert min(shares) >= 24 / engines / 2


async def test_bpr_05_a_burst_of_completions_is_spread_as_well() -> None:
    gate = asyncio.Event()

    async def script(call: Call) -> None:
        await gate.wait()
        await call.answer({"choices": [{"text": "x", "finish_reason": "stop"}]})

    async with field(script, script) as at:
        bodies = [{"model": "stub", "prompt": f"prompt {number}"} for number in range(24)]
        asking = [asyncio.create_task(at.client.post(COMPLETIONS, json=body)) for body in bodies]
        async with asyncio.timeout(20):
            while at.calls < 24:
                await asyncio.sleep(0.01)
        assert min(len(engine.calls) for engine in at.engines) >= 6
        gate.set()
        await asyncio.gather(*asking)


async def test_bpr_01_a_client_that_reads_again_gets_every_byte_in_order() -> None:
    async def script(call: Call) -> None:
        await call.stream(*(token(number) for number in range(4000)), DONE)

    async with field(script) as at, connected(at.router, receive_buffer=4096) as client:
        await client.send(post(CHAT, dumped(chat(stream=True))))
        await asyncio.sleep(0.2)
        answer = await client.answer()
        assert answer.body == b"".join(token(number) for number in range(4000)) + DONE
