"""Idleness: since when nobody wants anything of a pool. PURE.

It counts from the latest of the pool's first sight, its last request's arrival, and the last look at which one was in
flight or held: a router that has just begun knows of no quiet before it, and a long answer is no quiet at all.
"""

from __future__ import annotations

from collections.abc import Iterable


class Idleness:
    """Times are the caller's monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def looked(self, pool: str, busy: bool, now: float) -> None:
        """`busy`: requests of the pool are in flight or wait."""
        if busy or pool not in self._since:
            self._since[pool] = now

    def kept(self, pools: Iterable[str]) -> None:
        """All others are forgotten."""
        for gone in self._since.keys() - set(pools):
            del self._since[gone]

    def of(self, pool: str, now: float, since_arrival_s: float | None) -> float:
        """Seconds; 0 for a pool never looked at. `since_arrival_s`: since its last request came, if one did."""
        quiet_s = now - self._since.get(pool, now)
        return max(quiet_s if since_arrival_s is None else min(quiet_s, since_arrival_s), 0.0)
