"""Stalls: takes engines that stand still out of the pool, and lets them back on trial.

Nobody is taken out where everybody who works stands still: then it is the router, or the network, that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.observability.supervisor import Sleep
from router.pool.pool import Pool
from router.pool.record import UpstreamRecord
from router.pool.stall import Pulse, StallPolicy, StallTracker
from router.ports import Clock

_LATE = 3.0
"""A look this many intervals late says that this process itself stood still."""


class Stalls:
    def __init__(
        self,
        pool: Pool,
        requests: Callable[[str], int],
        heard_at: Callable[[str], float | None],
        *,
        clock: Clock,
        policy: StallPolicy | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`requests(endpoint_id)`: ours under way there. `heard_at(url)`: when answers last brought bytes."""
        self._pool = pool
        self._requests = requests
        self._heard_at = heard_at
        self._clock = clock
        self.policy = policy or StallPolicy()
        self._sleep = sleep
        self._trackers: dict[str, StallTracker] = {}
        self._looked_at: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await self._sleep(self.policy.interval_s)

    def look(self) -> None:
        """One round over all engines."""
        now = self._clock()
        last, self._looked_at = self._looked_at, now
        slept = last is not None and now - last > _LATE * self.policy.interval_s
        trackers = {name: self._trackers.get(name) or StallTracker(now) for name in self._pool.upstream_ids()}
        self._trackers = trackers
        for name, tracker in trackers.items():
            record = self._pool.record(name)
            if record is None:
                continue
            tracker.look(self._pulse(record, now), now)
            if slept:
                tracker.reset(now)
            if tracker.out_until is not None and (now >= tracker.out_until or not record.stalled):
                tracker.out_until = None
                tracker.reset(now)
                self._pool.moves(name)
        busy = {name: tracker.still_s(now) for name, tracker in trackers.items() if tracker.busy}
        after_s = self.policy.after_s
        still = [name for name, still_s in busy.items() if still_s >= after_s]
        if not still or (len(busy) > 1 and len(still) == len(busy)):
            return
        for name in still:
            self._stop(name, trackers[name], now)

    def _stop(self, name: str, tracker: StallTracker, now: float) -> None:
        if tracker.out_until is None and self._pool.stands_still(name):
            out_s = min(self.policy.after_s * 2.0**tracker.times, self.policy.most_s)
            tracker.out_until = now + out_s
            tracker.times += 1
            tracker.reset(now)

    def _pulse(self, record: UpstreamRecord, now: float) -> Pulse:
        requests = sum(self._requests(ranked.endpoint.id) for ranked in record.endpoints())
        page = record.page
        recent = page is not None and now - page.taken_at < self.policy.after_s / 2
        return Pulse(requests, self._heard_at(record.spec.url), page.pulse if page is not None and recent else None)
