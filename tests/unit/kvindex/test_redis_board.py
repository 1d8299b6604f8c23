"""What routers tell each other through a real server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kvindex.redis_board import Load, RedisBoard
from kvindex.redis_link import RedisLink, end_task
from loadtest.redis_server import RedisServer, server_binaries

E = "10.0.0.1:8000/0"


class Router:
    def __init__(self, url: str, namespace: str, load_ttl_s: float) -> None:
        self.load: Load = {}
        self.note = b""
        self.heard: list[tuple[str, list[int]]] = []
        self.board = RedisBoard(
            RedisLink(url, budget_s=0.3),
            router=secrets.token_hex(4),
            namespace=namespace,
            load=lambda: self.load,
            note=lambda: self.note,
            on_dispatched=self._hear,
            load_ttl_s=load_ttl_s,
        )

    def _hear(self, endpoint: str, keys: Sequence[int], age_s: float) -> None:
        assert 0 <= age_s < 60
        self.heard.append((endpoint, list(keys)))


@pytest.fixture(scope="module", params=server_binaries(), ids=lambda binary: Path(binary).name)
def shared_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


Join = Callable[..., Router]


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    namespace = secrets.token_hex(4)
    routers: list[Router] = []

    def join(server: RedisServer, load_ttl_s: float = 3.0) -> Router:
        router = Router(server.url, namespace, load_ttl_s)
        routers.append(router)
        router.board.start()
        return router

    yield join
    for router in routers:
        await router.board.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_router_sees_the_sum_of_the_others_and_never_its_own(shared_server: RedisServer, join: Join) -> None:
    a, b, c = (join(shared_server) for _ in range(3))
    a.load = {E: (1, 10, 100), "x": (1, 0, 0)}
    b.load = {E: (2, 20, 200)}
    await until(lambda: c.board.others() == {E: (3, 30, 300), "x": (1, 0, 0)})
    await until(lambda: a.board.others() == {E: (2, 20, 200)})
    assert c.board.routers == 3
    a.load = {}
    await until(lambda: c.board.others() == {E: (2, 20, 200)})


async def test_the_load_of_a_router_that_ends_is_taken_down(shared_server: RedisServer, join: Join) -> None:
    a, b = join(shared_server, load_ttl_s=60.0), join(shared_server, load_ttl_s=60.0)
    a.load = {E: (1, 10, 100)}
    await until(lambda: bool(b.board.others()))
    await a.board.aclose()
    await until(lambda: not b.board.others())


async def test_the_load_of_a_router_that_dies_goes_with_its_time(shared_server: RedisServer, join: Join) -> None:
    a, b = join(shared_server, load_ttl_s=0.3), join(shared_server, load_ttl_s=0.3)
    a.load = {E: (1, 10, 100)}
    await until(lambda: bool(b.board.others()))
    assert a.board._task is not None
    await end_task(a.board._task)
    await until(lambda: not b.board.others())
    assert b.board.routers == 1


async def test_notes_are_told_apart_by_router_until_they_are_empty_or_their_router_is_gone(
    shared_server: RedisServer, join: Join
) -> None:
    a, b, c = (join(shared_server, load_ttl_s=0.5) for _ in range(3))
    a.note, b.note = b"\x00 a \xff", b"b"
    await until(lambda: sorted(c.board.notes().values()) == [b"\x00 a \xff", b"b"])
    await until(lambda: list(a.board.notes().values()) == [b"b"])
    heard = c.board.notes()
    await asyncio.sleep(0.1)
    assert c.board.notes() is heard
    a.note = b""
    await until(lambda: list(c.board.notes().values()) == [b"b"])
    assert b.board._task is not None
    await end_task(b.board._task)
    await until(lambda: not c.board.notes())


async def test_a_dispatch_is_heard_once_by_every_other_router(shared_server: RedisServer, join: Join) -> None:
    a, b, c = (join(shared_server) for _ in range(3))
    for number in range(20):
        a.board.dispatched(E, [number, 2**64 - 1])
    await until(lambda: len(b.heard) == len(c.heard) == 20)
    assert b.heard == c.heard == [(E, [number, 2**64 - 1]) for number in range(20)]
    assert a.heard == []


async def test_a_router_that_joins_hears_what_was_dispatched_before(shared_server: RedisServer, join: Join) -> None:
    a, b = join(shared_server), join(shared_server)
    for number in range(1200):
        a.board.dispatched(E, [number])
    await until(lambda: len(b.heard) == 1200)
    late = join(shared_server)
    await until(lambda: late.heard == b.heard)


async def test_a_frozen_server_makes_others_load_unknown_and_loses_no_dispatch(server: RedisServer, join: Join) -> None:
    a, b = join(server, load_ttl_s=0.4), join(server, load_ttl_s=0.4)
    a.load = {E: (1, 10, 100)}
    await until(lambda: bool(b.board.others()))
    server.freeze()
    a.board.dispatched(E, [7])
    await until(lambda: not b.board.others())
    server.thaw()
    await until(lambda: bool(b.board.others()))
    await until(lambda: (E, [7]) in b.heard)


async def test_an_emptied_and_a_replaced_server_are_used_again(server: RedisServer, join: Join) -> None:
    a, b = join(server), join(server)
    a.board.dispatched(E, [1])
    await until(lambda: (E, [1]) in b.heard)
    server.command("FLUSHALL")
    a.board.dispatched(E, [2])
    await until(lambda: (E, [2]) in b.heard)
    server.stop()
    a.load = {E: (5, 0, 0)}
    a.board.dispatched(E, [3])
    server.start()
    await until(lambda: (E, [3]) in b.heard and b.board.others() == {E: (5, 0, 0)})
