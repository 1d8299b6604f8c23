"""Large bodies: accepted up to the limit, and no stream stands still for them."""

from __future__ import annotations

import asyncio
import hashlib

from loadtest.simulator import TOKENIZER_PATH
from tests.support.field import CHAT, chat, field, streamed, until
from tests.support.rawclient import dumped
from tests.support.stub_engine import DONE, Call, completed, serve, token

MEGABYTE = 1024 * 1024
JSON = {"content-type": "application/json"}


async def test_lrg_01_pictures_and_long_texts_arrive_whole() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (8 * MEGABYTE)}}
    bodies = [
        dumped({"model": "stub", "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, picture]}]}),
        dumped(chat("lorem ipsum " * (6 * MEGABYTE // 12))),
    ]
    async with field(serve) as at:
        for body in bodies:
            assert (await at.client.post(CHAT, content=body, headers=JSON)).status_code == 200
        received = [hashlib.sha256(call.body).digest() for call in at.engine.calls]
        assert received == [hashlib.sha256(body).digest() for body in bodies]


async def test_lrg_01_beyond_the_limit_is_a_413_that_names_it() -> None:
    async with field(serve, server__max_body_bytes=1000) as at:
        answer = await at.chat("x" * 2000)
        assert answer.status_code == 413
        assert "server.max_body_bytes" in answer.json()["error"]["message"]
        assert at.calls == 0


async def test_lrg_02_a_stream_goes_on_while_huge_prompts_are_read_and_tokenized() -> None:
    over = asyncio.Event()

    async def script(call: Call) -> None:
        if not call.json.get("stream"):
            await call.answer(completed())
            return
        await call.head()
        number = 0
        while not over.is_set():
            await call.chunk(token(number))
            number += 1
            await asyncio.sleep(0.01)
        await call.chunk(DONE)
        await call.end()

    flags = {"tokenization__default": str(TOKENIZER_PATH)}
    async with field(script, **flags) as at:
        events = 0

        async def listen() -> None:
            nonlocal events
            async with at.client.stream("POST", CHAT, json=streamed()) as answer:
                async for piece in answer.aiter_raw():
                    events += piece.count(b"data:")

        listening = asyncio.create_task(listen())
        await until(lambda: events)
        before = events
        bodies = [dumped(chat(f"lorem {number} ipsum " * (3 * MEGABYTE // 15))) for number in range(3)]
        answers = await asyncio.gather(*(at.client.post(CHAT, content=body, headers=JSON) for body in bodies))
        during = events - before
        over.set()
        await listening
        assert {answer.status_code for answer in answers} == {200}
        assert during >= 5
