"""Routers sharing one index through a real server: what others learn, and what happens when the server misbehaves."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvindex import Match, MemoryIndex, Tier
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from loadtest.redis_groups import ClusterServers
from loadtest.redis_server import RedisServer, server_binaries

E = "10.0.0.1:8000/0"
CHAIN = list(range(100, 108))
MANY = list(range(1_000, 31_000))


@pytest.fixture(scope="module", params=server_binaries(), ids=lambda binary: Path(binary).name)
def shared_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One that the test may stop."""
    with RedisServer() as server:
        yield server


Join = Callable[..., Awaitable[RedisIndex]]


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    """Starts routers' indexes in one namespace."""
    namespace = secrets.token_hex(4)
    routers: list[RedisIndex] = []

    async def join(
        server: RedisServer | ClusterServers,
        *,
        max_pending: int = 200_000,
        wait: bool = True,
        link: Callable[[str], RedisLink] = lambda url: RedisLink(url, budget_s=0.3),
    ) -> RedisIndex:
        def store() -> RedisStore:
            return RedisStore(link(server.url), namespace=namespace)

        index = RedisIndex(
            MemoryIndex(time.monotonic),
            store,
            router=secrets.token_hex(4),
            max_pending=max_pending,
            journal_limit=max_pending // 2,
            look_round_s=0.1,
            lease_s=0.8,
        )
        routers.append(index)
        await index.start()
        if wait:
            await index.synchronized(20)
        return index

    yield join
    for index in routers:
        await index.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_one_router_stores_another_finds(shared_server: RedisServer, join: Join) -> None:
    first, second = await join(shared_server), await join(shared_server)
    first.store(E, CHAIN, Tier.DEVICE)
    first.store(E, CHAIN[:6], Tier.HOST)
    first.remove(E, CHAIN[3:], Tier.DEVICE)
    await until(lambda: second.match(CHAIN) == {E: Match(6, 3)})
    first.clear(E, Tier.HOST)
    await until(lambda: second.match(CHAIN) == {E: Match(3, 3)})
    first.clear(E, None)
    await until(lambda: second.match(CHAIN) == {})


async def test_a_router_that_joins_later_loads_the_snapshot(shared_server: RedisServer, join: Join) -> None:
    first = await join(shared_server)
    first.store(E, MANY, Tier.DEVICE)
    first.store(E, CHAIN, Tier.STORAGE)
    await first.synchronized(20)
    second = await join(shared_server)
    assert second.match(MANY) == {E: Match(len(MANY), len(MANY))}
    assert second.match(CHAIN) == {E: Match(8, 0)}
    first.remove(E, MANY[1:], Tier.DEVICE)
    await until(lambda: second.match(MANY) == {E: Match(1, 1)})


async def test_who_feeds_an_endpoint_itself_does_not_listen_to_others(shared_server: RedisServer, join: Join) -> None:
    first, second = await join(shared_server), await join(shared_server)
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
    second.store(E, CHAIN[:2], Tier.DEVICE)
    assert second.match(CHAIN) == {E: Match(2, 2)}
    first.store(E, [7], Tier.DEVICE)
    await first.synchronized()
    await second.synchronized()
    assert second.match([7]) == {}


async def test_an_endpoint_dropped_by_its_owner_is_taken_over_as_it_is(shared_server: RedisServer, join: Join) -> None:
    first, second, third = [await join(shared_server) for _ in range(3)]
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: first.owned == 1)
    second.store(E, CHAIN[:6], Tier.DEVICE)
    await until(lambda: third.match(CHAIN) == {E: Match(8, 8)})
    first.drop(E)
    await until(lambda: second.owned == 1)
    await until(lambda: third.match(CHAIN) == {E: Match(6, 6)})
    assert first.match(CHAIN) == {}


async def test_more_pending_than_allowed_becomes_a_rewrite(shared_server: RedisServer, join: Join) -> None:
    first = await join(shared_server, max_pending=100)
    second = await join(shared_server)
    for at in range(0, 3000, 100):
        first.store(E, MANY[at : at + 100], Tier.DEVICE)
    first.remove(E, MANY[2000:3000], Tier.DEVICE)
    await until(lambda: second.match(MANY) == {E: Match(2000, 2000)})


# The server misbehaves


async def test_without_a_server_the_index_works_and_says_that_it_is_stale(server: RedisServer, join: Join) -> None:
    server.stop()
    index = await join(server, wait=False)
    index.store(E, CHAIN, Tier.DEVICE)
    assert index.match(CHAIN) == {E: Match(8, 8)}
    assert index.stats().stale
    server.start()
    await index.synchronized(20)
    assert not index.stats().stale
    other = await join(server)
    assert other.match(CHAIN) == {E: Match(8, 8)}


async def test_a_server_replaced_by_an_empty_one_is_written_to_again(server: RedisServer, join: Join) -> None:
    first, second = await join(server), await join(server)
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
    server.stop()
    await until(lambda: first.stats().stale and second.stats().stale)
    first.store(E, [1], Tier.DEVICE)
    assert second.match(CHAIN) == {E: Match(8, 8)}
    server.start()
    await first.synchronized(20)
    await until(lambda: second.match([1]) == {E: Match(1, 1)})
    third = await join(server)
    assert third.match(CHAIN) == second.match(CHAIN) == {E: Match(8, 8)}


async def test_a_flushed_server_is_noticed_and_written_to_again(server: RedisServer, join: Join) -> None:
    first, second = await join(server), await join(server)
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
    assert server.command("FLUSHALL") == b"+OK\r\n"
    third = await join(server)
    await until(lambda: third.match(CHAIN) == {E: Match(8, 8)})
    assert second.match(CHAIN) == {E: Match(8, 8)}


async def test_a_frozen_server_costs_no_lookup_anything(server: RedisServer, join: Join) -> None:
    first, second = await join(server), await join(server)
    server.freeze()
    for at in range(0, 1000, 10):
        first.store(E, MANY[at : at + 10], Tier.DEVICE)
        assert first.match(MANY[: at + 10]) == {E: Match(at + 10, at + 10)}
    await until(lambda: first.stats().stale)
    server.thaw()
    await first.synchronized(20)
    await until(lambda: second.match(MANY) == {E: Match(1000, 1000)})


async def test_connections_killed_again_and_again_lose_nothing(server: RedisServer, join: Join) -> None:
    first, second = await join(server), await join(server)
    for at in range(0, 500, 10):
        first.store(E, MANY[at : at + 10], Tier.DEVICE)
        if at % 100 == 0:
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.005)
    await first.synchronized(20)
    await until(lambda: second.match(MANY) == {E: Match(500, 500)})


async def test_a_server_that_answers_readonly_is_waited_for(server: RedisServer, join: Join) -> None:
    first = await join(server)
    server.command("REPLICAOF", "127.0.0.1", "1")
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: first.stats().stale)
    server.command("REPLICAOF", "NO", "ONE")
    await first.synchronized(20)
    assert (await join(server)).match(CHAIN) == {E: Match(8, 8)}


async def test_a_cluster_that_was_away_as_a_whole_is_shared_through_again(join: Join) -> None:
    with ClusterServers() as cluster:
        first, second = await join(cluster), await join(cluster)
        first.store(E, CHAIN, Tier.DEVICE)
        await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
        for primary in cluster.primaries:
            primary.stop()
        cluster.replica.stop()
        await until(lambda: first.stats().stale and second.stats().stale)
        first.store(E, [7], Tier.DEVICE)
        for primary in cluster.primaries:
            primary.start()
        cluster.replica.start()
        async with asyncio.timeout(60):
            while second.match([7]) != {E: Match(1, 1)}:
                await asyncio.sleep(0.05)
        assert not first.stats().stale


class Confused(RedisLink):
    """A link whose library fails in a way that nobody foresaw, once."""

    failed = False

    async def call(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        if not Confused.failed:
            Confused.failed = True
            raise IndexError("pop from an empty deque")
        return await super().call(ask)


async def test_an_error_that_nobody_foresaw_ends_one_round_and_not_the_sharing(
    server: RedisServer, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    Confused.failed = False
    first = await join(server, link=Confused)
    assert Confused.failed
    first.store(E, CHAIN, Tier.DEVICE)
    second = await join(server)
    await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
    assert any(record.exc_info for record in caplog.records)
