from __future__ import annotations

import asyncio
import logging
import random

import pytest

from router.observability.supervisor import Backoff, Supervisor
from tests.support.pool import VirtualTime


class Flaky:
    """Fails when told how often, then runs until cancelled."""

    def __init__(self, failures: int, time: VirtualTime, lasts_s: float = 0.0) -> None:
        self.starts: list[float] = []
        self.ended = False
        self._failures = failures
        self._time = time
        self._lasts_s = lasts_s

    async def __call__(self) -> None:
        self.starts.append(self._time.now)
        try:
            if len(self.starts) <= self._failures:
                await self._time.sleep(self._lasts_s)
                raise ValueError("the prompt was: secret")
            await asyncio.Event().wait()
        finally:
            self.ended = True


def supervisor(time: VirtualTime) -> Supervisor:
    return Supervisor(
        clock=time.clock,
        sleep=time.sleep,
        backoff=Backoff(first_s=1.0, most_s=8.0, forgiven_after_s=60.0),
        rng=random.Random(3),
    )


def gaps(work: Flaky) -> list[float]:
    return [later - earlier for earlier, later in zip(work.starts, work.starts[1:], strict=False)]


async def test_a_failing_task_starts_again_after_growing_pauses() -> None:
    time = VirtualTime()
    work, tasks = Flaky(6, time), supervisor(time)
    tasks.spawn("work", work)
    await time.advance(60)
    for gap, expected in zip(gaps(work), [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.75 * expected <= gap <= 1.25 * expected
    (report,) = tasks.reports()
    assert (report.name, report.running, report.failures) == ("work", True, 6)
    await tasks.aclose()


async def test_a_task_that_ran_long_is_forgiven_its_past() -> None:
    time = VirtualTime()
    work, tasks = Flaky(3, time, lasts_s=100.0), supervisor(time)
    tasks.spawn("work", work)
    await time.advance(400)
    assert all(100.75 <= gap <= 101.25 for gap in gaps(work))
    await tasks.aclose()


async def test_a_failure_is_logged_by_type_and_place_and_never_by_its_message(caplog: pytest.LogCaptureFixture) -> None:
    time = VirtualTime()
    work, tasks = Flaky(1, time), supervisor(time)
    with caplog.at_level(logging.DEBUG):
        tasks.spawn("work", work)
        await time.advance(2)
    await tasks.aclose()
    assert "work failed (ValueError at test_supervisor.py:" in caplog.text
    assert "secret" not in caplog.text


async def test_a_task_that_returns_is_over() -> None:
    time = VirtualTime()
    tasks = supervisor(time)

    async def once() -> None:
        await time.sleep(1)

    handle = tasks.spawn("once", once)
    await time.advance(2)
    assert handle.done
    assert tasks.reports() == []
    await tasks.aclose()


async def test_a_cancelled_task_ends_for_good_and_the_others_go_on() -> None:
    time = VirtualTime()
    tasks, first, second = supervisor(time), Flaky(0, time), Flaky(0, time)
    handle = tasks.spawn("first", first)
    tasks.spawn("second", second)
    await time.settle()
    handle.cancel()
    await handle.wait()
    assert first.ended
    assert not second.ended
    assert [report.name for report in tasks.reports()] == ["second"]
    await tasks.aclose()


async def test_closing_ends_what_runs_and_what_waits_to_run_again() -> None:
    time = VirtualTime()
    tasks, running, waiting = supervisor(time), Flaky(0, time), Flaky(1, time)
    tasks.spawn("running", running)
    tasks.spawn("waiting", waiting)
    await time.settle()
    await tasks.aclose()
    await tasks.aclose()
    assert running.ended
    assert tasks.reports() == []
    await time.advance(100)
    assert len(waiting.starts) == 1
    with pytest.raises(RuntimeError, match="closed"):
        tasks.spawn("late", running)
    assert len(asyncio.all_tasks()) == 1


async def test_closing_waits_for_a_task_that_takes_its_time_to_clean_up() -> None:
    time = VirtualTime()
    tasks = supervisor(time)
    cleaned = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned.set()

    tasks.spawn("tidy", tidy)
    await time.settle()
    await tasks.aclose()
    assert cleaned.is_set()
