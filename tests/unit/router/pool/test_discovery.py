from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from router.observability.supervisor import Supervisor
from router.pool.discovery import Discovery, Feeds, StaticDiscovery
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec
from tests.support.pool import VirtualTime

A, B, C = (EndpointSpec(url=f"http://{name}:1") for name in "abc")


class Scripted:
    """Brings whatever is put into it; an exception is raised."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[Sequence[EndpointSpec] | Exception] = asyncio.Queue()
        self.watches = 0

    async def watch(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        self.watches += 1
        while True:
            item = await self.lists.get()
            if isinstance(item, Exception):
                raise item
            yield item


def ids(pool: Pool) -> list[str]:
    return [state.endpoint.id for state in pool.snapshot()]


async def test_feeds_carry_their_lists_into_the_pool_and_take_them_out_when_they_end() -> None:
    time, pool = VirtualTime(), Pool()
    supervisor = Supervisor(clock=time.clock, sleep=time.sleep)
    feeds, scripted = Feeds(pool, supervisor), Scripted()
    fixed: Discovery = StaticDiscovery([A])
    feeds.follow({"fixed": fixed, "scripted": scripted})
    await time.settle()
    assert ids(pool) == ["a:1"]
    scripted.lists.put_nowait([B, C])
    await time.settle()
    assert ids(pool) == ["a:1", "b:1", "c:1"]
    scripted.lists.put_nowait([C])
    await time.settle()
    assert ids(pool) == ["a:1", "c:1"]
    feeds.follow({"fixed": fixed})
    await time.settle()
    assert ids(pool) == ["a:1"]
    await feeds.aclose()
    assert ids(pool) == ["a:1"]
    assert supervisor.reports() == []
    await supervisor.aclose()


async def test_a_feed_that_stays_goes_on_as_it_was() -> None:
    time, pool = VirtualTime(), Pool()
    supervisor = Supervisor(clock=time.clock, sleep=time.sleep)
    feeds, scripted = Feeds(pool, supervisor), Scripted()
    feeds.follow({"scripted": scripted})
    await time.settle()
    feeds.follow({"scripted": scripted})
    await time.settle()
    assert scripted.watches == 1
    await supervisor.aclose()


async def test_a_discovery_that_breaks_is_started_again_and_its_last_list_stays() -> None:
    time, pool = VirtualTime(), Pool()
    supervisor = Supervisor(clock=time.clock, sleep=time.sleep)
    feeds, scripted = Feeds(pool, supervisor), Scripted()
    feeds.follow({"scripted": scripted})
    scripted.lists.put_nowait([A])
    scripted.lists.put_nowait(OSError("gone"))
    await time.settle()
    assert ids(pool) == ["a:1"]
    scripted.lists.put_nowait([B])
    await time.advance(1)
    assert ids(pool) == ["b:1"]
    assert scripted.watches == 2
    await supervisor.aclose()
