"""Rates over several routers: one key's use at all of them counts, and without a server each gives its share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from kvindex.redis_link import RedisLink
from loadtest.redis_server import RedisServer
from router.errors import RateLimited
from router.flowcontrol.key_limits import KeyLimits, Rate
from router.rate_sharing import RateSharing


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Router:
    def __init__(self, server: RedisServer, namespace: str, clock: Callable[[], float]) -> None:
        self.limits = KeyLimits({"k": Rate(requests_per_min=600, tokens_per_min=6000, burst_s=1)}, clock)
        self.sharing = RateSharing(
            RedisLink(server.url, budget_s=1.0), self.limits, namespace=namespace, routers=lambda: 2
        )

    def take(self) -> int:
        """Requests that get in until one is refused."""
        count = 0
        while True:
            try:
                self.limits.enter("k")
            except RateLimited:
                return count
            self.limits.leave("k")
            count += 1


@asynccontextmanager
async def two(server: RedisServer) -> AsyncIterator[tuple[Router, Router, list[float]]]:
    now = [0.0]
    namespace = secrets.token_hex(4)
    a, b = (Router(server, namespace, lambda: now[0]) for _ in range(2))
    try:
        for router in (a, b):
            await router.sharing.exchange()
        yield a, b, now
    finally:
        for router in (a, b):
            await router.sharing.aclose()


async def test_what_one_gave_the_other_does_not_give_again(shared_server: RedisServer) -> None:
    async with two(shared_server) as (a, b, _):
        assert a.take() == 10
        await a.sharing.exchange()
        await b.sharing.exchange()
        assert b.take() == 0


async def test_over_time_both_together_give_one_rate(shared_server: RedisServer) -> None:
    async with two(shared_server) as (a, b, now):
        given = 0
        for _ in range(100):
            now[0] += 0.1
            for router in (a, b):
                given += router.take()
                await router.sharing.exchange()
        # 10 s of 10 a second, a burst each, and what one exchange is late.
        assert 100 <= given <= 100 + 20 + 2


async def test_tokens_are_told_too(shared_server: RedisServer) -> None:
    async with two(shared_server) as (a, b, _):
        a.limits.enter("k")
        a.limits.charge("k", 1000)
        await a.sharing.exchange()
        await b.sharing.exchange()
        with pytest.raises(RateLimited, match="tokens a minute"):
            b.limits.enter("k")


async def test_an_emptied_server_charges_nobody_anew(shared_server: RedisServer) -> None:
    async with two(shared_server) as (a, b, now):
        a.take()
        await a.sharing.exchange()
        await b.sharing.exchange()
        await a.sharing._link.call(lambda client: client.flushall())
        now[0] += 1
        await b.sharing.exchange()
        assert b.take() == 10


async def test_without_a_server_each_gives_its_share_until_it_is_back() -> None:
    with RedisServer() as server:
        async with two(server) as (a, _, now):
            a.take()
            server.stop()
            await a.sharing.exchange()
            assert a.limits.share == 0.5
            now[0] += 1
            assert a.take() == 5
            server.start()
            await a.sharing.exchange()
            assert a.limits.share == 1.0
