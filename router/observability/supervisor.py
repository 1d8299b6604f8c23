"""Supervisor: every background task of a process, restarted when it fails, and awaited when all ends.

The one place that catches whatever a task may raise: a task that dies unseen freezes what it fed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from router.ports import Clock

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]
"""``asyncio.sleep`` or a test's stand-in."""
Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes a fresh coroutine for each start."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delay before the n-th restart in a row: doubling from `first_s` to `most_s`, each with +-25 % jitter."""

    first_s: float = 0.1
    most_s: float = 10.0
    forgiven_after_s: float = 60.0
    """A task that ran this long before it failed starts anew at `first_s`."""

    def delay(self, failures_in_a_row: int, rng: random.Random) -> float:
        doubled = self.first_s * 2.0 ** min(failures_in_a_row - 1, 30)
        return min(self.most_s, doubled) * rng.uniform(0.75, 1.25)


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    running: bool
    """False between a failure and the restart."""
    failures: int
    last_error: str | None
    """Type and place of the last failure; never its message, which might hold anything."""


class SupervisedTask:
    """Handle of one task."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.last_error: str | None = None
        self.running = False
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Asks it to end, for good; the supervisor's `aclose` waits for it if nobody else does."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Until it has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def done(self) -> bool:
        return self._task is None or self._task.done()

    def report(self) -> TaskReport:
        return TaskReport(name=self.name, running=self.running, failures=self.failures, last_error=self.last_error)


class Supervisor:
    """Use inside a running loop. After `aclose` nothing that it started runs any more."""

    def __init__(
        self,
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._tasks: dict[SupervisedTask, asyncio.Task[None]] = {}
        self._closed = False

    def spawn(self, name: str, work: Work) -> SupervisedTask:
        """Runs `work()` until it returns; starts it again, after a growing pause, each time it raises."""
        if self._closed:
            raise RuntimeError(f"the supervisor is closed: it cannot start {name}")
        handle = SupervisedTask(name)
        task = asyncio.create_task(self._run(handle, work), name=name)
        handle._task = task
        self._tasks[handle] = task
        task.add_done_callback(lambda _: self._tasks.pop(handle, None))
        return handle

    def reports(self) -> list[TaskReport]:
        """Of the tasks that have not ended, for metrics and debugging."""
        return [handle.report() for handle in self._tasks]

    async def aclose(self) -> None:
        """Cancels all and waits for all. Idempotent."""
        self._closed = True
        while self._tasks:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Done callbacks run in the loop's next turn.
            await asyncio.sleep(0)

    async def _run(self, handle: SupervisedTask, work: Work) -> None:
        in_a_row = 0
        while True:
            started = self._clock()
            handle.running = True
            try:
                await work()
                return
            except Exception as error:  # noqa: BLE001 - the supervisor of background tasks
                in_a_row = 1 if self._clock() - started >= self._backoff.forgiven_after_s else in_a_row + 1
                handle.failures += 1
                handle.last_error = _describe(error)
            finally:
                handle.running = False
            delay = self._backoff.delay(in_a_row, self._rng)
            log.error("task %s failed (%s), starts again in %.1f s", handle.name, handle.last_error, delay)
            await self._sleep(delay)


def _describe(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
