"""Routers sharing one index through a real server: what others learn, and what happens when the server misbehaves."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis

from kvindex import Match, MemoryIndex, Mode, Tier
from kvindex.redis_index import RedisIndex
from kvindex.redis_store import Change, RedisStore, StoreUnavailable, to_keys
from tests.support.kvindex_redis import RedisServer, server_binaries

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

    async def join(server: RedisServer, *, max_pending: int = 200_000, wait: bool = True) -> RedisIndex:
        store = RedisStore(server.url, namespace=namespace, budget_s=0.3)
        index = RedisIndex(MemoryIndex(time.monotonic), store, max_pending=max_pending, endpoints_every_s=0.1)
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


def test_a_url_of_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme"):
        RedisStore("http://127.0.0.1")


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


async def test_dispatches_of_one_router_count_in_the_others(shared_server: RedisServer, join: Join) -> None:
    first, second = await join(shared_server), await join(shared_server)
    first.store(E, CHAIN[:1], Tier.DEVICE)
    second.set_mode(E, Mode.EXACT)
    first.set_mode(E, Mode.EXACT)

    def seen() -> bool:
        # More than once: what was dispatched before the other router followed the endpoint is not told to it.
        first.speculate(E, CHAIN, 5.0)
        first.record("other", CHAIN[:2])
        return second.match(CHAIN) == {E: Match(8, 8), "other": Match(2, 2)}

    await until(seen)
    assert second.stats().speculative >= 7


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


async def test_a_dropped_endpoint_is_forgotten_by_its_followers(shared_server: RedisServer, join: Join) -> None:
    first, second = await join(shared_server), await join(shared_server)
    first.store(E, CHAIN, Tier.DEVICE)
    await until(lambda: second.match(CHAIN) == {E: Match(8, 8)})
    first.drop(E)
    await until(lambda: second.match(CHAIN) == {})
    await first.synchronized()
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


async def test_user_and_password_come_in_the_url(join: Join) -> None:
    options = ["requirepass top", "user router on >s3cret ~* &* +@all"]
    with RedisServer(None, *options) as server:
        for credentials in (":top", "router:s3cret"):
            store = RedisStore(server.url.replace("//", f"//{credentials}@"))
            assert await store.epoch() == await store.epoch()
            await store.aclose()
        refused = RedisStore(server.url.replace("//", "//router:wrong@"))
        with pytest.raises(StoreUnavailable) as error:
            await refused.epoch()
        assert "wrong" not in str(error.value)
        await refused.aclose()


async def test_an_answer_that_comes_too_late_is_never_read_by_the_next_command(server: RedisServer) -> None:
    store = RedisStore(server.url, budget_s=0.2)
    epoch = await store.epoch()
    for _ in range(3):
        server.freeze()
        with pytest.raises(StoreUnavailable):
            await store.endpoints()
        cancelled = asyncio.create_task(store.last_id(E))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        server.thaw()
        assert await store.epoch() == epoch
        assert await store.endpoints() == set()
    await store.aclose()


async def test_a_batch_is_one_endpoint_one_slot_and_every_key_expires(shared_server: RedisServer) -> None:
    namespace = secrets.token_hex(4)
    store = RedisStore(shared_server.url, namespace=namespace, retention_s=50)
    for tier in Tier:
        await store.write("w", E, [Change(f"s{int(tier)}", to_keys(CHAIN))])
    await store.aclose()
    with redis.Redis.from_url(shared_server.url) as client:
        keys = list(client.scan_iter(f"{namespace}:*"))
        own = [key for key in keys if key.startswith(f"{namespace}:{{{E}}}:".encode())]
        assert sorted(key.rpartition(b":")[2] for key in own) == [b"device", b"host", b"storage", b"stream"]
        assert set(keys) - set(own) == {f"{namespace}:endpoints".encode()}
        assert all(0 < client.ttl(key) <= 50 for key in own)
