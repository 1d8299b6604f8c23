"""Several routers over the same engines and one Redis, and what a Redis may do under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from loadtest.redis_groups import ClusterServers, WatchedServers
from loadtest.redis_server import RedisServer
from loadtest.simulator import RunningEngine
from tests.support.router import RunningRouter, client_of, endpoints, running_router
from tests.support.simulator import engines

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.timeout(180)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 4} | more


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def synchronized(router: RunningRouter) -> None:
    """What it tells the others is told, and what they told is heard."""
    shared = router.app._shared
    assert shared is not None
    await shared.index.synchronized(60)


class Group:
    """Routers, and a client for each."""

    def __init__(self, routers: list[RunningRouter], clients: list[httpx.AsyncClient]) -> None:
        self.routers = routers
        self.clients = clients

    def stale(self) -> list[bool]:
        return [router.app.indexing.stats().stale for router in self.routers]


@asynccontextmanager
async def routers(count: int, running: list[RunningEngine], url: str, **flags: Any) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        shared = {"index__backend": "redis", "redis__url": url} | flags
        group = Group([], [])
        for _ in range(count):
            router = await stack.enter_async_context(running_router(endpoints(running), **shared))
            group.routers.append(router)
            group.clients.append(await stack.enter_async_context(client_of(router)))
        yield group


async def test_a_router_leaves_alone_what_another_one_keeps_busy() -> None:
    """Scrapes are off: all that the second router knows of the first one's requests, it knows by the board."""
    with RedisServer() as server:
        async with (
            engines(2, profile="demo", kv_events=False) as (busy, idle),
            routers(1, [busy], server.url) as first,
            routers(1, [busy, idle], server.url, pool__scrape_interval_s=3600.0) as second,
        ):
            long = chat("take your time", max_tokens=400, ignore_eos=True, stream=True)
            held = [asyncio.create_task(first.clients[0].post(CHAT, json=long)) for _ in range(8)]
            name = second.routers[0].endpoint_of(busy)
            shared = second.routers[0].app._shared
            assert shared is not None
            await until(lambda: shared.board.others().get(name, (0, 0, 0))[0] == 8)
            answers = [await second.clients[0].post(CHAT, json=chat(f"{number} else " * 20)) for number in range(4)]
            chosen = {answer.headers["x-kvrouter-endpoint"] for answer in answers}
            assert chosen == {second.routers[0].endpoint_of(idle)}
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await until(lambda: name not in shared.board.others())


async def test_a_router_that_joins_knows_what_the_others_know() -> None:
    with RedisServer() as server:
        async with engines(2) as running, routers(1, running, server.url) as first:
            text = "a beginning that is long enough for blocks " * 20
            there = await first.clients[0].post(CHAT, json=chat(text))
            index = first.routers[0].app._shared
            assert index is not None
            await index.index.synchronized(30)
            async with routers(1, running, server.url) as second:
                await until(
                    lambda: all(state.index.value == "exact" for state in second.routers[0].app.pool.snapshot())
                )
                here = await second.clients[0].post(CHAT, json=chat(text))
                assert here.headers["x-kvrouter-endpoint"] == there.headers["x-kvrouter-endpoint"]
                assert int(here.headers["x-kvrouter-matched-tokens"]) > 0


Fault = Callable[[Any], Awaitable[None]]


async def killed(server: RedisServer) -> None:
    server.stop()
    await asyncio.sleep(1.0)
    server.start()


async def frozen(server: RedisServer) -> None:
    server.freeze()
    await asyncio.sleep(2.0)
    server.thaw()


async def flushed(server: RedisServer) -> None:
    server.command("FLUSHALL")


async def disconnected(server: RedisServer) -> None:
    for _ in range(20):
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.05)


async def failed_over(watched: WatchedServers) -> None:
    watched.first.stop()


async def failed_over_in_part(cluster: ClusterServers) -> None:
    cluster.primaries[0].stop()


class Load:
    """Requests one after another on every router until the end."""

    def __init__(self, group: Group) -> None:
        self.statuses: list[int] = []
        self.errors: list[Exception] = []
        self._group = group
        self._over = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, client in enumerate(self._group.clients * 3):
                tasks.create_task(self._ask(client, number))

    def end(self) -> None:
        self._over.set()

    async def _ask(self, client: httpx.AsyncClient, user: int) -> None:
        turn = 0
        text = f"user {user} " * 30
        while not self._over.is_set():
            turn += 1
            text += f"turn {turn} of user {user} " * 5
            try:
                self.statuses.append((await client.post(CHAT, json=chat(text[-4000:]))).status_code)
            except httpx.HTTPError as error:
                self.errors.append(error)


@pytest.mark.parametrize(
    ("servers", "fault"),
    [
        (RedisServer, killed),
        (RedisServer, frozen),
        (RedisServer, flushed),
        (RedisServer, disconnected),
        (WatchedServers, failed_over),
        (ClusterServers, failed_over_in_part),
    ],
    ids=["killed", "frozen", "flushed", "disconnected", "sentinel", "cluster"],
)
async def test_whatever_redis_does_costs_no_request_and_the_index_is_shared_again(
    servers: Callable[[], Any], fault: Fault
) -> None:
    with servers() as server:
        async with engines(2) as running, routers(2, running, server.url, redis__command_timeout_s=1.0) as group:
            await until(lambda: not any(group.stale()))
            load = Load(group)
            asking = asyncio.create_task(load.run())
            await until(lambda: len(load.statuses) > 20)
            await fault(server)
            during = len(load.statuses)
            await until(lambda: len(load.statuses) > during + 20)
            load.end()
            await asking
            assert not load.errors
            assert set(load.statuses) == {200}
            for router in group.routers:
                await synchronized(router)
            # Shared again: a router that joins only now is told what the others know.
            texts = [f"afterwards {number} " * 40 for number in range(3)]
            for text in texts:
                await group.clients[0].post(CHAT, json=chat(text))
            await synchronized(group.routers[0])
            async with routers(1, running, server.url, redis__command_timeout_s=2.0) as late:
                states = late.routers[0].app.pool.snapshot
                await until(lambda: all(state.index.value == "exact" for state in states()))
                for text in texts:
                    answer = await late.clients[0].post(CHAT, json=chat(text))
                    assert int(answer.headers["x-kvrouter-matched-tokens"]) > 0


async def test_routers_start_and_serve_without_the_redis_they_are_told_of() -> None:
    dead = RedisServer()
    async with engines(1) as running, routers(1, running, dead.url) as group:
        assert (await group.clients[0].post(CHAT, json=chat("hello"))).status_code == 200
        assert group.stale() == [True]
        assert (await group.clients[0].get("/ready")).status_code == 200
