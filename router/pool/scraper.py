"""Scraper: reads one engine's ``/metrics`` into the pool. One call is one round."""

from __future__ import annotations

import logging

import msgspec

from router.pool.calls import CallError, ControlCalls
from router.pool.pool import Pool
from router.pool.reading import read_page
from router.ports import Clock

log = logging.getLogger(__name__)


class ScrapePolicy(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 1.0
    timeout_s: float = 2.0
    path: str = "/metrics"


class Scraper:
    def __init__(self, pool: Pool, calls: ControlCalls, *, clock: Clock, policy: ScrapePolicy | None = None) -> None:
        self._pool = pool
        self._calls = calls
        self._clock = clock
        self.policy = policy or ScrapePolicy()

    async def scrape(self, upstream_id: str) -> None:
        record = self._pool.record(upstream_id)
        if record is None:
            return
        # Counted from before the call: the page is at least as old as the answer took.
        taken_at = self._clock()
        try:
            text = await self._calls.get_text(record.contact(), self.policy.path, timeout_s=self.policy.timeout_s)
        except CallError as error:
            # The first failure of a row is news, the others are the same news.
            log.log(
                logging.INFO if record.scrapes_failed == 0 else logging.DEBUG,
                "endpoint %s gives no metrics: %s",
                upstream_id,
                error.reason,
            )
            self._pool.scrape_failed(upstream_id)
            return
        if self._pool.record(upstream_id) is record:
            page = read_page(text, taken_at)
            for name, value in page.impossible.items():
                if name not in record.impossible:
                    record.impossible.add(name)
                    log.warning(
                        "endpoint %s says %s %g, which cannot be: such values count as not told",
                        upstream_id,
                        name,
                        value,
                    )
            self._pool.read_page(upstream_id, page)
