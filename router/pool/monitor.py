"""Monitor: watches every upstream of the pool, each by tasks of its own, so that one that hangs delays nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from router.observability.supervisor import Sleep, SupervisedTask, Supervisor
from router.pool.observers import PoolObserver
from router.pool.pool import Pool
from router.pool.prober import Prober
from router.pool.scraper import Scraper
from router.ports import Clock

_FIRST_WITHIN_S = 0.25
"""First rounds are spread over this, so that a start does not call all engines in the same instant."""
_REFRESH_GAP_S = 1.0


class Monitor(PoolObserver):
    """`start` it once; it follows the pool until `stop`. Tasks belong to the supervisor."""

    def __init__(
        self,
        pool: Pool,
        prober: Prober,
        scraper: Scraper,
        supervisor: Supervisor,
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._prober = prober
        self._scraper = scraper
        self._supervisor = supervisor
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._tasks: dict[str, tuple[SupervisedTask, ...]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at: float | None = None

    def start(self) -> None:
        self._pool.add_observer(self)
        self._pool.refresh_models_by(self.refresh_models)

    async def stop(self) -> None:
        """Ends all watching and waits for it."""
        self._pool.remove_observer(self)
        self._pool.refresh_models_by(None)
        tasks = [task for watchers in self._tasks.values() for task in watchers]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.wait()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    async def probe_all(self) -> None:
        """One round over all upstreams at once: after it, everyone who answers is known. For the start and checks."""
        async with asyncio.TaskGroup() as group:
            for upstream_id in self._pool.upstream_ids():
                group.create_task(self._prober.probe(upstream_id))

    async def refresh_models(self) -> None:
        """Asks all engines for their models now, at most once a second, one round for all who wait for it: for a
        request that names a model nobody is known to serve (an adapter loaded a moment ago)."""
        recent = self._refreshed_at is not None and self._clock() - self._refreshed_at < _REFRESH_GAP_S
        if self._refreshing is None or self._refreshing.done():
            if recent:
                return
            self._refreshed_at = self._clock()
            self._refreshing = asyncio.create_task(self._refresh_round(), name="refresh models")
        # A waiting request that is cancelled must not end the round for the others.
        await asyncio.shield(self._refreshing)

    async def _refresh_round(self) -> None:
        async with asyncio.TaskGroup() as group:
            for upstream_id in self._pool.upstream_ids():
                group.create_task(self._prober.refresh_models(upstream_id))

    def upstream_added(self, upstream_id: str) -> None:
        prober, scraper = self._prober, self._scraper
        probe = self._watch(f"probe {upstream_id}", lambda: prober.probe(upstream_id), lambda: prober.policy.interval_s)
        scrape = self._watch(
            f"scrape {upstream_id}", lambda: scraper.scrape(upstream_id), lambda: scraper.policy.interval_s
        )
        self._tasks[upstream_id] = (probe, scrape)

    def upstream_removed(self, upstream_id: str) -> None:
        for task in self._tasks.pop(upstream_id, ()):
            task.cancel()

    def _watch(self, name: str, step: Callable[[], Awaitable[None]], interval_s: Callable[[], float]) -> SupervisedTask:
        async def rounds() -> None:
            await self._sleep(self._rng.uniform(0, min(interval_s(), _FIRST_WITHIN_S)))
            while True:
                started = self._clock()
                await step()
                # Jitter keeps routers that were started together from calling an engine in step.
                period = interval_s() * self._rng.uniform(0.9, 1.1)
                await self._sleep(max(0.0, period - (self._clock() - started)))

        return self._supervisor.spawn(name, rounds)
