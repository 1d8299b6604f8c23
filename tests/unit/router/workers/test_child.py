from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from router.api.admin import Order
from router.api.lifecycle import Lifecycle
from router.errors import WorkersSilent
from router.orders import InForce, Orders
from router.pool.pool import Pool
from router.workers.child import Family
from router.workers.plan import PARENT, Workers, socket_of
from router.workers.talk import Answerer, ask


class Parent:
    """Answers a worker as its parent would."""

    def __init__(self, folder: Path) -> None:
        self.ready: list[str] = []
        answers = {"metrics": self._metrics, "workers": self._workers, "orders": self._orders, "ready": self._ready}
        self.answerer = Answerer(folder / PARENT, answers)

    async def _metrics(self, _: str) -> bytes:
        return b"of all"

    async def _workers(self, _: str) -> bytes:
        return msgspec.json.encode(Workers(2, 3, False))

    async def _orders(self, _: str) -> bytes:
        return msgspec.json.encode(InForce(router=True))

    async def _ready(self, number: str) -> bytes:
        self.ready.append(number)
        return b"ok"


@asynccontextmanager
async def parent(folder: Path) -> AsyncIterator[Parent]:
    found = Parent(folder)
    await found.answerer.start()
    try:
        yield found
    finally:
        await found.answerer.aclose()


async def test_one_that_begins_takes_over_what_was_ordered_and_then_says_which_it_is(tmp_path: Path) -> None:
    lifecycle = Lifecycle()
    family = Family(tmp_path, 7)
    async with parent(tmp_path) as found:
        await family.begin(lambda: b"own", Orders(Pool(), lifecycle))
        assert lifecycle.out_of_service
        assert found.ready == ["7"]
        assert await ask(socket_of(tmp_path, 7), "ping")
        assert await ask(socket_of(tmp_path, 7), "metrics") == b"own"
        assert await family.metrics(b"own") == b"of all"
        assert (await family.readiness()).shown == {"workers": {"running": 2, "of": 3}}
    await family.aclose()


async def test_without_its_parent_it_does_not_pass_its_own_counts_for_all(tmp_path: Path) -> None:
    family = Family(tmp_path, 7)
    with pytest.raises(WorkersSilent):
        await family.metrics(b"own")
    assert (await family.readiness()).shown == {}
    assert await family.order(Order("drain")) == (1, 2, None)
