"""Routers that hear one engine, or cannot hear it, and share what they know of it through a real server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from kvindex import Match, MemoryIndex, Mode, Tier
from kvindex.ingest import Ingest
from kvindex.journal import At, Changes
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink, end_task
from kvindex.redis_store import RedisStore, Written
from kvindex.sockets import event_context
from kvindex.subscriber import KvEventSubscriber
from loadtest.redis_server import RedisServer
from tests.support.kvindex import CLEARED, reference_hashes, reference_root, removed, stored, tier_stored
from tests.support.kvindex_publisher import FakePublisher

E = "engine"
BLOCK = 4
TOKENS = list(range(BLOCK * 8))
CHAIN = reference_hashes(TOKENS, BLOCK, reference_root("m"))
ALL = {E: Match(8, 8)}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def engine() -> Iterator[FakePublisher]:
    with FakePublisher() as engine:
        yield engine


class Router:
    """An index, and what follows the engine's events if it can hear them."""

    def __init__(self, index: RedisIndex) -> None:
        self.index = index
        self.subscriber: KvEventSubscriber | None = None
        self._context = event_context()

    def hear(self, engine: FakePublisher, block_size: int = BLOCK) -> None:
        ingest = Ingest("m", block_size)
        self.index.attach(E, ingest)
        self.subscriber = KvEventSubscriber(
            engine.source(),
            ingest,
            self.index,
            self._context,
            prepare=lambda: self.index.restore(E),
            replay_timeout_s=0.3,
            silence_s=0.5,
        )
        self.subscriber.start()

    async def deafen(self) -> None:
        if self.subscriber is not None:
            await self.subscriber.aclose()
            self.subscriber = None

    async def die(self) -> None:
        """As by SIGKILL: nothing is given back."""
        await self.deafen()
        assert self.index._task is not None
        await end_task(self.index._task)
        keeper = self.index._keeper
        keeper._tokens = {}
        keeper.want(frozenset())
        keeper._stopping = True

    async def aclose(self) -> None:
        await self.deafen()
        await self.index.aclose()
        self._context.term()


Join = Callable[..., Awaitable[Router]]


class Truth:
    """The store as it stands."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    async def blocks(self) -> int:
        return len((await self.store.tables(E, Tier.DEVICE))[0])

    async def at(self) -> At | None:
        return (await self.store.state(E)).at


@pytest.fixture
def namespace() -> str:
    return secrets.token_hex(4)


@pytest.fixture
async def truth(server: RedisServer, namespace: str) -> AsyncIterator[Truth]:
    store = RedisStore(RedisLink(server.url), namespace=namespace)
    yield Truth(store)
    await store.aclose()


@pytest.fixture
async def join(server: RedisServer, namespace: str) -> AsyncIterator[Join]:
    routers: list[Router] = []

    async def join(engine: FakePublisher | None = None, *, block_size: int = BLOCK, journal: int = 20_000) -> Router:
        def store() -> RedisStore:
            return RedisStore(RedisLink(server.url, budget_s=0.5), namespace=namespace)

        index = RedisIndex(
            MemoryIndex(time.monotonic),
            store,
            router=secrets.token_hex(4),
            look_round_s=0.1,
            lease_s=0.8,
            journal_limit=journal,
        )
        router = Router(index)
        routers.append(router)
        await index.start()
        if engine is not None:
            router.hear(engine, block_size)
        return router

    yield join
    for router in routers:
        await router.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def until_stored(truth: Truth, engine: FakePublisher) -> None:
    async with asyncio.timeout(20):
        while True:
            at = await truth.at()
            if at is not None and at.sequence == engine.sequence - 1 and not at.part:
                return
            await asyncio.sleep(0.01)


def publish(engine: FakePublisher, first: int = 0, end: int = 8) -> None:
    """One message a block."""
    for i in range(first, end):
        engine.publish(stored([i + 1], TOKENS[i * BLOCK : (i + 1) * BLOCK], BLOCK, i or None))


async def test_a_router_that_joins_goes_on_from_the_store_where_the_engine_has_forgotten(
    engine: FakePublisher, join: Join, truth: Truth
) -> None:
    first = await join(engine)
    await until(lambda: first.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until_stored(truth, engine)
    engine.forget_before = engine.sequence - 1
    engine.requests.clear()
    second = await join(engine)
    await until(lambda: second.index.mode(E) is Mode.EXACT and second.index.match(CHAIN) == ALL)
    # Asked again where the answer is slow to come, and always from there.
    assert set(engine.requests) == {engine.sequence - 1}
    engine.publish(removed([8]))
    await until(lambda: second.index.match(CHAIN) == {E: Match(7, 7)})


async def test_counts_and_tiers_go_along(engine: FakePublisher, join: Join, truth: Truth) -> None:
    first = await join(engine)
    await until(lambda: first.index.mode(E) is Mode.EXACT)
    publish(engine)
    engine.publish(stored([1], TOKENS[:BLOCK], BLOCK), tier_stored([1, 2], "CPU"))
    engine.publish(removed([2]))
    await until_stored(truth, engine)
    second = await join(engine)
    await until(lambda: second.index.mode(E) is Mode.EXACT)
    await until(lambda: second.index.match(CHAIN) == {E: Match(8, 1)})
    engine.publish(removed([1]))
    engine.publish(removed([3]))
    await until(lambda: second.index.match(CHAIN) == {E: Match(2, 1)})
    engine.publish(removed([1]))
    await until(lambda: second.index.match(CHAIN) == {E: Match(2, 0)})
    await until_stored(truth, engine)
    third = await join(engine)
    await until(lambda: third.index.match(CHAIN) == {E: Match(2, 0)})


async def test_a_stored_state_of_a_former_process_is_not_believed(
    engine: FakePublisher, join: Join, truth: Truth
) -> None:
    first = await join(engine)
    await until(lambda: first.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until_stored(truth, engine)
    await first.die()
    engine.restart()
    publish_at = 5_000.0
    engine.publish(stored([1], TOKENS[:BLOCK], BLOCK), timestamp=publish_at)
    second = await join(engine)
    await until(lambda: second.index.mode(E) is Mode.EXACT)
    assert second.index.match(CHAIN) == {E: Match(1, 1)}
    await until_stored(truth, engine)
    assert await truth.blocks() == 1


@pytest.mark.parametrize("journal", [20_000, 4])
async def test_a_takeover_goes_on_from_where_the_dead_owner_was_and_clears_nothing(
    engine: FakePublisher, join: Join, truth: Truth, journal: int
) -> None:
    first = await join(engine)
    await until(lambda: first.index.owned == 1 or first.index.mode(E) is Mode.EXACT)
    publish(engine, 0, 4)
    await until_stored(truth, engine)
    second, third = await join(engine, journal=journal), await join()
    await until(lambda: second.index.mode(E) is Mode.EXACT)
    await until(lambda: third.index.match(CHAIN) == {E: Match(4, 4)})
    await first.die()
    publish(engine, 4, 8)
    least = 4
    async with asyncio.timeout(60):
        while least < 8:
            blocks = await truth.blocks()
            assert blocks >= least
            least = blocks
    await until_stored(truth, engine)
    await until(lambda: third.index.match(CHAIN) == ALL and second.index.owned == 1)


async def test_a_router_that_cannot_hear_the_engine_follows_its_owner(
    engine: FakePublisher, join: Join, truth: Truth
) -> None:
    first, deaf = await join(engine), await join()
    await until(lambda: first.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until(lambda: deaf.index.match(CHAIN) == ALL and deaf.index.mode(E) is Mode.EXACT)
    engine.publish(removed([8]), tier_stored([7], "CPU"))
    engine.publish(removed([7]))
    await until(lambda: deaf.index.match(CHAIN) == {E: Match(7, 6)})
    engine.publish(CLEARED)
    await until(lambda: deaf.index.match(CHAIN) == {})
    assert deaf.index.followed == 1


async def test_a_router_that_goes_deaf_follows_and_hears_for_itself_again(
    engine: FakePublisher, join: Join, truth: Truth
) -> None:
    first, second = await join(engine), await join(engine)
    await until(lambda: first.index.mode(E) is second.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until(lambda: second.index.match(CHAIN) == ALL)
    await second.deafen()
    second.index.clear(E, None)
    second.index.set_mode(E, Mode.APPROXIMATE)
    await until(lambda: second.index.followed == 1 and second.index.match(CHAIN) == ALL)
    engine.publish(removed([8]))
    await until(lambda: second.index.match(CHAIN) == {E: Match(7, 7)})
    second.hear(engine)
    await until(lambda: second.index.followed == 0)
    engine.publish(removed([7]))
    await until(lambda: second.index.match(CHAIN) == {E: Match(6, 6)})


async def test_engine_blocks_that_are_parts_of_ours_can_be_followed(
    engine: FakePublisher, join: Join, truth: Truth
) -> None:
    keys = reference_hashes(TOKENS, 2 * BLOCK, reference_root("m"))
    first = await join(engine, block_size=2 * BLOCK)
    deaf = await join()
    await until(lambda: first.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until(lambda: deaf.index.match(keys) == {E: Match(4, 4)})
    engine.publish(removed([8]))
    await until(lambda: deaf.index.match(keys) == {E: Match(3, 3)})
    late = await join(engine, block_size=2 * BLOCK)
    await until(lambda: late.index.mode(E) is Mode.EXACT)
    assert late.index.match(keys) == {E: Match(3, 3)}


async def test_a_flushed_server_is_right_again_soon(
    engine: FakePublisher, join: Join, truth: Truth, server: RedisServer
) -> None:
    first, second, deaf = await join(engine), await join(engine), await join()
    await until(lambda: first.index.mode(E) is second.index.mode(E) is Mode.EXACT)
    publish(engine)
    await until(lambda: deaf.index.match(CHAIN) == ALL)
    server.command("FLUSHALL")
    engine.publish(removed([8]))
    await until_stored(truth, engine)
    assert await truth.blocks() == 7
    await until(lambda: deaf.index.match(CHAIN) == {E: Match(7, 7)})


async def test_a_busy_loop_does_not_lose_what_it_owns(engine: FakePublisher, join: Join, truth: Truth) -> None:
    first, second = await join(engine), await join(engine)
    await until(lambda: first.index.owned + second.index.owned == 1)
    owner = (await truth.store.state(E)).owner
    time.sleep(2.5)
    assert owner is not None
    assert (await truth.store.state(E)).owner == owner


async def test_whoever_lost_the_lease_writes_nothing(truth: Truth) -> None:
    store = truth.store
    first = (await store.claim({E: True}, "a", 0.2))[E]
    assert (await store.claim({E: True}, "b", 0.2))[E] == first
    changes = Changes()
    changes.add("s", Tier.DEVICE, [1, 2], [11, 22])
    assert await store.write(E, first, b"", At(1, 1.0), b"", changes.items()) is Written.OK
    assert await store.write(E, first, b"", At(1, 1.0), b"", changes.items()) is Written.OK, "sent again"
    assert await store.write(E, first, b"", At(2, 2.0), b"", changes.items()) is Written.MOVED
    async with asyncio.timeout(10):
        while (second := (await store.claim({E: True}, "b", 5))[E]) == first:
            await asyncio.sleep(0.05)
    assert int(second.partition(":")[2]) > int(first.partition(":")[2])
    gone = Changes()
    gone.add("r", Tier.DEVICE, [1], [11])
    start = At(1, 1.0).encode().encode()
    assert await store.write(E, first, start, At(2, 2.0), b"", gone.items()) is Written.FENCED
    assert await truth.blocks() == 2
    assert await store.write(E, second, start, At(2, 2.0), b"", gone.items()) is Written.OK
    assert await truth.blocks() == 1
    await store.release([E], "a")
    assert (await store.state(E)).owner == second.encode()
    await store.release([E], "b")
    assert (await store.state(E)).owner is None


async def test_every_key_of_an_endpoint_expires_and_lies_in_one_slot(truth: Truth, namespace: str) -> None:
    store = truth.store
    token = (await store.claim({E: True}, "a", 5))[E]
    changes = Changes()
    for tier in Tier:
        changes.add("s", tier, [1], [11])
        changes.add("n", tier, [1], [2])
    assert await store.write(E, token, b"", At(1, 1.0), b"", changes.items()) is Written.OK

    async def ask(client: Any) -> list[tuple[bytes, int]]:
        return [(key, await client.ttl(key)) async for key in client.scan_iter(f"{namespace}:*")]

    found = await store._link.call(ask)
    assert len(found) == 9
    assert all(f"{namespace}:{{{E}}}:".encode() in key and 0 < ttl <= 3600 for key, ttl in found)
