from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.core import IndexState
from router.observability.supervisor import Supervisor
from router.pool.events import EventWiring
from router.pool.facts import KvEventSource
from router.pool.health import HealthPolicy
from router.pool.pool import Pool
from router.pool.reading import read_page
from router.pool.spec import EndpointSpec, KvEventsSpec
from tests.support.pool import VirtualTime, page

A, B = "http://a:1", "http://b:1"


class FakeSubscription:
    def __init__(self, world: World, endpoint_id: str, address: str) -> None:
        self._world = world
        self._name = f"{endpoint_id} {address}"
        self.exact = False
        self.closed = False

    def resync(self, reason: str) -> None:
        self._world.did.append(f"resync {self._name}: {reason}")

    async def aclose(self) -> None:
        if self._world.close_takes_s:
            await self._world.time.sleep(self._world.close_takes_s)
        if not self.closed:
            self.closed = True
            self._world.did.append(f"close {self._name}")


class World:
    def __init__(self) -> None:
        self.time = VirtualTime()
        self.pool = Pool(HealthPolicy(probes_up=1, probes_down=1))
        self.supervisor = Supervisor(clock=self.time.clock, sleep=self.time.sleep, rng=random.Random(1))
        self.did: list[str] = []
        self.open: dict[str, FakeSubscription] = {}
        self.refusals = 0
        self.close_takes_s = 0.0
        self.wiring = EventWiring(
            self.pool,
            self.subscribe,
            lambda endpoint_id: self.did.append(f"forget {endpoint_id}"),
            self.supervisor,
            sleep=self.time.sleep,
        )

    def subscribe(self, endpoint_id: str, source: KvEventSource) -> FakeSubscription:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no more sockets")
        self.did.append(f"open {endpoint_id} {source.endpoint}")
        self.open[endpoint_id] = FakeSubscription(self, endpoint_id, source.endpoint)
        return self.open[endpoint_id]

    async def take(self) -> list[str]:
        await self.time.settle()
        did, self.did = self.did, []
        return did

    def set(self, *urls: str, port: int = 5557) -> None:
        self.pool.set_endpoints(
            [EndpointSpec(url=url, kv_events=KvEventsSpec(endpoint=f"tcp://*:{port}")) for url in urls]
        )

    def index(self, endpoint_id: str) -> IndexState:
        state = self.pool.get(endpoint_id)
        assert state is not None
        return state.index


@asynccontextmanager
async def wired() -> AsyncIterator[World]:
    world = World()
    world.wiring.start()
    try:
        yield world
    finally:
        world.close_takes_s = 0.0
        await world.wiring.aclose()
        await world.supervisor.aclose()


async def test_an_endpoint_with_a_source_is_subscribed_to_and_one_without_is_not() -> None:
    async with wired() as world:
        world.set(A)
        world.pool.set_endpoints([EndpointSpec(url=B)], source="other")
        assert await world.take() == ["forget a:1", "open a:1 tcp://a:5557"]


async def test_an_endpoint_that_shall_not_be_subscribed_to_is_not_whatever_the_engine_offers() -> None:
    async with wired() as world:
        world.pool.set_endpoints([EndpointSpec(url=A, publishes_kv_events=False)])
        world.pool.learn("a:1", at=1.0, sources={0: KvEventSource(endpoint="tcp://a:5557", global_rank=0)})
        assert await world.take() == []


async def test_the_index_is_exact_for_as_long_as_the_subscriber_says_so() -> None:
    async with wired() as world:
        world.set(A)
        await world.take()
        assert world.index("a:1") is IndexState.APPROXIMATE
        world.open["a:1"].exact = True
        await world.time.advance(1)
        assert world.index("a:1") is IndexState.EXACT
        world.open["a:1"].exact = False
        await world.time.advance(1)
        assert world.index("a:1") is IndexState.APPROXIMATE


async def test_a_removed_endpoint_is_closed_first_and_then_forgotten() -> None:
    async with wired() as world:
        world.set(A)
        await world.take()
        world.set()
        assert await world.take() == ["close a:1 tcp://a:5557", "forget a:1"]


async def test_a_removed_endpoint_without_events_is_forgotten_too() -> None:
    async with wired() as world:
        world.pool.set_endpoints([EndpointSpec(url=A)])
        world.pool.set_endpoints([])
        assert await world.take() == ["forget a:1"]


async def test_a_successor_under_the_same_id_waits_until_the_old_one_is_closed_and_forgotten() -> None:
    async with wired() as world:
        world.set(A)
        await world.take()
        world.close_takes_s = 5.0
        world.set()
        world.set(A)
        assert await world.take() == []
        await world.time.advance(6)
        assert await world.take() == ["close a:1 tcp://a:5557", "forget a:1", "open a:1 tcp://a:5557"]


async def test_what_changes_while_an_old_one_closes_is_not_opened_in_vain() -> None:
    async with wired() as world:
        world.set(A)
        await world.take()
        world.close_takes_s = 5.0
        world.set(A, port=6000)
        await world.time.settle()
        world.set(A, port=7000)
        await world.time.advance(6)
        did = await world.take()
        assert did[0] == "close a:1 tcp://a:5557"
        assert [step for step in did if step.startswith("open")] == ["open a:1 tcp://a:7000"]


async def test_a_restarted_engine_is_resynced_or_forgotten_where_there_are_no_events() -> None:
    async with wired() as world:
        world.set(A)
        world.pool.set_endpoints([EndpointSpec(url=B)], source="other")
        for upstream_id in ("a:1", "b:1"):
            world.pool.read_page(upstream_id, read_page(page(start=1.0), 1.0))
        await world.take()
        for upstream_id in ("a:1", "b:1"):
            world.pool.read_page(upstream_id, read_page(page(start=2.0), 2.0))
        assert await world.take() == ["resync a:1 tcp://a:5557: restarted", "forget b:1"]


async def test_ranks_have_a_subscriber_each() -> None:
    async with wired() as world:
        world.set(A)
        await world.take()
        world.pool.read_page("a:1", read_page(page(engines=2), 1.0))
        did = await world.take()
        assert did.index("close a:1 tcp://a:5557") < did.index("forget a:1")
        assert [step for step in did if step.startswith("open")] == [
            "open a:1/0 tcp://a:5557",
            "open a:1/1 tcp://a:5558",
        ]


async def test_a_source_that_is_lost_is_closed_and_its_entries_go() -> None:
    async with wired() as world:
        world.pool.set_endpoints([EndpointSpec(url=A)])
        world.pool.learn("a:1", at=1.0, sources={0: KvEventSource(endpoint="tcp://a:5557", global_rank=0)})
        await world.take()
        world.pool.learn("a:1", at=2.0, sources={})
        assert await world.take() == ["close a:1 tcp://a:5557", "forget a:1"]


async def test_a_subscriber_that_cannot_start_is_tried_again() -> None:
    async with wired() as world:
        world.refusals = 2
        world.set(A)
        assert "open a:1 tcp://a:5557" not in await world.take()
        await world.time.advance(5)
        assert "open a:1 tcp://a:5557" in await world.take()


async def test_closing_closes_every_subscriber_and_forgets_nothing() -> None:
    world = World()
    world.wiring.start()
    world.set(A, B)
    await world.take()
    await world.wiring.aclose()
    assert sorted(await world.take()) == ["close a:1 tcp://a:5557", "close b:1 tcp://b:5557"]
    assert world.supervisor.reports() == []
    await world.supervisor.aclose()


async def test_a_close_that_was_cut_short_is_done_again_at_the_end() -> None:
    world = World()
    world.wiring.start()
    world.set(A)
    await world.take()
    world.close_takes_s = 5.0
    world.set()
    await world.time.settle()
    world.close_takes_s = 0.0
    await world.wiring.aclose()
    assert "close a:1 tcp://a:5557" in await world.take()
    await world.supervisor.aclose()


async def test_nothing_is_kept_for_endpoints_that_have_gone() -> None:
    async with wired() as world:
        for _ in range(5):
            world.set(A, B)
            await world.time.settle()
            world.set()
            await world.time.settle()
        assert [report.name for report in world.supervisor.reports()] == ["kv event states"]
        assert world.wiring._lanes == {}
