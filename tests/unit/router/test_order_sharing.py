"""Orders about endpoints hold at all routers over one Redis, and outlive routers, outages and the server's memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio as redis

from kvindex.redis_link import RedisLink
from loadtest.redis_server import RedisServer
from router.api.admin import Order
from router.api.lifecycle import Lifecycle
from router.core import Health
from router.order_sharing import OrderSharing
from router.orders import InForce, Orders
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec

NAMES = ("a:1", "b:1")


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Router:
    def __init__(self, server: RedisServer, namespace: str, names: tuple[str, ...] = NAMES) -> None:
        self.now = 0.0
        self.pool = Pool()
        self.pool.set_endpoints([EndpointSpec(url=f"http://{name}") for name in names])
        self.orders = Orders(self.pool, Lifecycle())
        self.pool.add_observer(self.orders)
        self.sharing = OrderSharing(
            RedisLink(server.url, budget_s=1.0), self.orders, namespace=namespace, clock=lambda: self.now
        )

    def obey(self, do: str, name: str, *, known: bool = False) -> None:
        assert self.orders.obey(Order("drain" if do == "drain" else "resume", name), known=known)

    @property
    def drained(self) -> set[str]:
        return {state.endpoint.id for state in self.pool.snapshot() if state.health is Health.DRAINING}


@asynccontextmanager
async def routers(
    server: RedisServer, *names: tuple[str, ...], namespace: str | None = None
) -> AsyncIterator[list[Router]]:
    """One for each of `names`, its pool; all have asked once."""
    namespace = namespace or secrets.token_hex(4)
    made = [Router(server, namespace, each) for each in names]
    try:
        for router in made:
            await router.sharing.exchange()
        yield made
    finally:
        for router in made:
            await router.sharing.aclose()


async def exchange(*routers: Router) -> None:
    for router in routers:
        assert await router.sharing.exchange()


async def test_what_is_ordered_at_one_router_holds_at_all_until_it_is_taken_back_at_any(
    shared_server: RedisServer,
) -> None:
    async with routers(shared_server, NAMES, NAMES, NAMES) as (a, b, c):
        a.obey("drain", "a:1")
        await exchange(a, b, c)
        assert a.drained == b.drained == c.drained == {"a:1"}
        b.obey("resume", "a:1")
        c.obey("drain", "b:1")
        await exchange(a, b, c)
        await exchange(a, b, c)
        assert a.drained == b.drained == c.drained == {"b:1"}


async def test_a_router_that_starts_later_learns_of_it_though_all_others_have_gone(
    shared_server: RedisServer,
) -> None:
    namespace = secrets.token_hex(4)
    async with routers(shared_server, NAMES, namespace=namespace) as (a,):
        a.obey("drain", "a:1")
        await exchange(a)
    async with routers(shared_server, NAMES, namespace=namespace) as (late,):
        assert late.drained == {"a:1"}


async def test_an_order_about_an_endpoint_that_another_router_does_not_have_yet_waits_there(
    shared_server: RedisServer,
) -> None:
    async with routers(shared_server, NAMES, ("b:1",)) as (a, b):
        a.obey("drain", "a:1")
        await exchange(a, b)
        assert b.drained == set()
        b.pool.set_endpoints([EndpointSpec(url=f"http://{name}") for name in NAMES])
        assert b.drained == {"a:1"}


async def test_the_router_itself_out_of_service_is_no_other_routers_business(shared_server: RedisServer) -> None:
    async with routers(shared_server, NAMES, NAMES) as (a, b):
        a.orders.obey(Order("drain"))
        a.obey("drain", "a:1")
        await exchange(a, b)
        assert (a.orders.in_force.router, b.orders.in_force.router) == (True, False)
        b.obey("resume", "a:1")
        await exchange(b, a)
        assert a.orders.in_force == InForce((), router=True)


async def test_without_a_server_orders_hold_where_they_are_given_and_are_told_when_it_is_back() -> None:
    with RedisServer() as server:
        async with routers(server, NAMES, NAMES) as (a, b):
            b.obey("drain", "b:1")
            await exchange(b, a)
            server.stop()
            a.obey("drain", "a:1")
            a.obey("resume", "b:1")
            assert not await a.sharing.exchange()
            assert not await b.sharing.exchange()
            assert (a.drained, b.drained) == ({"a:1"}, {"b:1"})
            server.start()
            await exchange(a, b)
            assert a.drained == b.drained == {"a:1"}


async def test_a_server_that_was_emptied_gets_back_what_is_in_force(shared_server: RedisServer) -> None:
    async with routers(shared_server, NAMES, NAMES) as (a, b), redis.Redis.from_url(shared_server.url) as client:
        a.obey("drain", "a:1")
        b.obey("drain", "b:1")
        await exchange(a, b, a)
        await client.flushall()
        a.obey("resume", "a:1")
        await exchange(a, b)
        assert a.drained == b.drained == {"b:1"}


async def test_a_server_that_lost_the_last_change_does_not_take_it_back(shared_server: RedisServer) -> None:
    namespace = secrets.token_hex(4)
    drained, version = f"{namespace}:{{orders}}:drained", f"{namespace}:{{orders}}:version"
    async with (
        routers(shared_server, NAMES, NAMES, namespace=namespace) as (a, b),
        redis.Redis.from_url(shared_server.url) as client,
    ):
        a.obey("drain", "a:1")
        await exchange(a, b)
        a.obey("drain", "b:1")
        await exchange(a, b)
        await client.hdel(drained, "b:1")
        await client.set(version, 1)
        await exchange(b, a)
        assert a.drained == b.drained == {"a:1", "b:1"}


async def test_an_order_ends_a_day_after_nobody_has_its_endpoint_any_more(shared_server: RedisServer) -> None:
    namespace = secrets.token_hex(4)
    key = f"{namespace}:{{orders}}:drained"
    async with (
        routers(shared_server, NAMES, namespace=namespace) as (a,),
        redis.Redis.from_url(shared_server.url) as client,
    ):
        a.obey("drain", "a:1")
        a.obey("drain", "b:1")
        await exchange(a)
        assert 0 < await client.pttl(key) <= 86_400_000
        yesterday = {name: int(told) - 86_400_000 for name, told in (await client.hgetall(key)).items()}
        a.pool.set_endpoints([EndpointSpec(url="http://a:1")])
        for name, told in yesterday.items():
            await client.hset(key, name, told + 1000)
        a.now += 601
        await exchange(a)
        for name, told in yesterday.items():
            if name == b"b:1":
                await client.hset(key, name, told - 1)
        await exchange(a)
        assert a.orders.in_force == InForce(("a:1",))
        assert int((await client.hgetall(key))[b"a:1"]) > yesterday[b"a:1"] + 1000


async def test_what_a_sibling_was_told_is_not_taken_back_while_it_is_on_its_way(shared_server: RedisServer) -> None:
    async with routers(shared_server, NAMES, NAMES) as (first, sibling):
        sibling.obey("drain", "a:1", known=True)
        await exchange(sibling)
        assert sibling.drained == {"a:1"}
        first.obey("drain", "a:1")
        first.obey("drain", "a:1", known=True)
        await exchange(first)
        sibling.now += 3
        await exchange(sibling)
        assert sibling.drained == {"a:1"}


async def test_what_a_sibling_said_and_no_router_told_ends(shared_server: RedisServer) -> None:
    async with routers(shared_server, NAMES) as (sibling,):
        sibling.obey("drain", "a:1", known=True)
        sibling.now += 3
        await exchange(sibling)
        assert sibling.drained == set()


async def test_orders_given_at_once_at_many_routers_leave_all_of_them_agreed(shared_server: RedisServer) -> None:
    async with routers(shared_server, *[NAMES] * 5) as group:
        for number, router in enumerate(group):
            router.obey("resume" if number % 2 else "drain", "a:1", known=True)
            router.obey("drain", NAMES[number % 2])
            router.obey("resume", NAMES[(number + 1) % 2], known=True)
        await asyncio.gather(*(router.sharing.exchange() for router in group))
        for router in group:
            router.now += 3
        await exchange(*group)
        assert len({frozenset(router.drained) for router in group}) == 1
