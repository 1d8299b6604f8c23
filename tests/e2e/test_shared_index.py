"""Two routers over the same engines and one Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from loadtest.redis_server import RedisServer
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines

CHAT = "/v1/chat/completions"


def chat(text: str) -> dict[str, Any]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 4}


async def is_known(client: httpx.AsyncClient, text: str) -> bool:
    """Whether the router would send it to somebody who holds some of it, and no longer believes him busy with it."""
    told = (await client.post("/debug/explain", json=chat(text))).json()
    return any(row["matched_tokens"] for row in told["candidates"] if row["endpoint"] == told["decode"][0])


async def test_what_one_router_dispatched_the_other_knows_even_without_kv_events() -> None:
    with RedisServer() as server:
        shared = {"index__backend": "redis", "redis__url": server.url}
        async with (
            engines(4, kv_events=False) as running,
            running_router(endpoints(running), **shared) as one,
            running_router(endpoints(running), **shared) as other,
            client_of(one) as first,
            client_of(other) as second,
        ):
            for number in range(6):
                text = f"conversation {number} " * 40
                there = await first.post(CHAT, json=chat(text))
                # Asking for an answer earlier would make a history of its own.
                async with asyncio.timeout(60):
                    while not await is_known(second, text):
                        await asyncio.sleep(0.02)
                here = await second.post(CHAT, json=chat(text))
                assert int(here.headers["x-kvrouter-matched-tokens"]) > 0
                assert here.headers["x-kvrouter-endpoint"] == there.headers["x-kvrouter-endpoint"]


async def test_a_redis_that_dies_costs_no_request() -> None:
    with RedisServer() as server:
        async with (
            engines(2) as running,
            running_router(endpoints(running), index__backend="redis", redis__url=server.url) as router,
            client_of(router) as client,
        ):
            assert (await client.post(CHAT, json=chat("before"))).status_code == 200
            server.stop()
            answers = [await client.post(CHAT, json=chat(f"after {number}")) for number in range(10)]
            assert {answer.status_code for answer in answers} == {200}
            async with asyncio.timeout(20):
                while "kvrouter_index_stale 1.0" not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0.1)
