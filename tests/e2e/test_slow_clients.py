"""Clients that keep the router waiting: in their head, in their body, and in taking their answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.core import Health
from tests.support.field import CHAT, field, streamed, until
from tests.support.rawclient import connected, dumped, post
from tests.support.stub_engine import SSE, Call, completed

pytestmark = pytest.mark.slow


async def answer(call: Call) -> None:
    await call.answer(completed())


async def test_a_head_and_a_body_that_stop_half_way_are_answered_408_and_closed() -> None:
    limits = {"server__head_timeout_s": 0.2, "server__body_idle_timeout_s": 0.2}
    async with field(answer, **limits) as at, connected(at.router) as head, connected(at.router) as body:
        await head.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nx-a: ")
        await body.send(post(CHAT, dumped(streamed()))[:-5])
        for client in (head, body):
            async with asyncio.timeout(10):
                said = await client.answer()
                assert said.status == 408
                assert json.loads(said.body)["error"]["code"] == "request_timeout"
                assert await client.closed() == b""
        await at.at_rest()
        assert at.calls == 0


async def test_who_stops_reading_is_cut_and_the_engine_and_its_slot_are_free() -> None:
    async def script(call: Call) -> None:
        await call.head(200, SSE)
        while True:
            await call.peer.send(b": " + b"x" * 65533 + b"\n")

    async with (
        field(script, server__send_timeout_s=0.5) as at,
        connected(at.router, receive_buffer=64 * 1024) as client,
    ):
        await client.send(post(CHAT, dumped(streamed())))
        await client.head()
        await at.at_rest(within_s=15)
        assert at.router.app.pool.snapshot()[0].health is not Health.UNHEALTHY
        await until(lambda: at.engine.over)
