"""A Redis that is frozen or not there costs no request anything."""

from __future__ import annotations

import asyncio
import socket

from loadtest.redis_server import RedisServer
from tests.support.field import ESTIMATED, chat
from tests.support.router import client_of, running_router
from tests.support.stub_engine import StubEngine

CHAT = "/v1/chat/completions"


async def test_red_01_a_frozen_redis_is_noticed_by_nobody_who_asks() -> None:
    with RedisServer() as server:
        shared = {"index__backend": "redis", "redis__url": server.url, "redis__command_timeout_s": 30.0, **ESTIMATED}
        async with (
            StubEngine() as engine,
            running_router([{"url": engine.url}], **shared) as router,
            client_of(router) as client,
        ):
            assert (await client.post(CHAT, json=chat("before " * 100))).status_code == 200
            server.freeze()
            # Any request that waited for Redis would wait for its 30 s.
            async with asyncio.timeout(20):
                for number in range(20):
                    assert (await client.post(CHAT, json=chat(f"frozen {number} " * 100))).status_code == 200
            server.thaw()
            assert (await client.post(CHAT, json=chat("after " * 100))).status_code == 200


async def test_red_02_without_redis_the_router_starts_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    shared = {"index__backend": "redis", "redis__url": f"redis://127.0.0.1:{port}", **ESTIMATED}
    async with (
        StubEngine() as engine,
        running_router([{"url": engine.url}], **shared) as router,
        client_of(router) as client,
    ):
        assert (await client.post(CHAT, json=chat())).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        async with asyncio.timeout(20):
            while "kvrouter_index_stale 1.0" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.1)
