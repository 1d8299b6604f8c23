from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from router.capacity.plan import Action, Plan
from router.core import Role
from router.planning.local import LocalEngines
from router.pool.pool import Pool
from tests.support.kvindex import Clock

KEY = (Role.BOTH, "small")
ONE = Plan(pool="m", action=Action.WAKE, reason="wake", why="", desired={KEY: 1})
FAILS = (sys.executable, "-c", "import sys; print('one', file=sys.stderr); sys.exit('no GPU here')", "--key={port}")


@asynccontextmanager
async def local(command: Sequence[str], clock: Clock) -> AsyncIterator[LocalEngines]:
    async def never(_: str) -> bool:
        return False

    engines = LocalEngines(
        command, pool=Pool(clock=clock), answers=never, busy=lambda _: 0, clock=clock, startup_s=lambda _: 90.0
    )
    try:
        yield engines
    finally:
        await engines.aclose()


async def failed(engines: LocalEngines) -> None:
    async with asyncio.timeout(30):
        while engines.starting():
            await asyncio.sleep(0.01)


async def test_an_engine_that_ends_while_it_starts_is_told_of_with_command_exit_code_and_last_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with local(FAILS, Clock()) as engines:
        await engines.apply(ONE)
        await failed(engines)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"both-small-1 ({sys.executable}) ended while it started, with exit code 1" in told
    assert 'it said last: "no GPU here"' in told
    assert "--key" not in told


async def test_after_failures_the_next_start_waits_longer_each_time() -> None:
    clock = Clock()
    async with local(FAILS, clock) as engines:
        waits = []
        for _ in range(4):
            began = clock()
            while not engines.starting():
                await engines.apply(ONE)
                clock.now += 0.25
            waits.append(clock() - began)
            await failed(engines)
    assert waits[0] < 1.0 <= waits[1] < 2.0 <= waits[2] < 4.0 <= waits[3] < 5.0


async def test_a_command_that_is_not_there_is_told_of_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    async with local(("/no/such/engine", "--port", "{port}"), Clock()) as engines:
        await engines.apply(ONE)
        assert not engines.starting()
    assert "/no/such/engine" in caplog.text
    assert "capacity.local_command" in caplog.text
