"""RetryBudget: how many retries the last seconds' requests may cost. PURE.

When everything fails, retries multiply the load on engines that are already in trouble. Retries are therefore bounded
by a share of the requests of a sliding window, over a reserve that lets a quiet router retry at all (the scheme of
Finagle's RetryBudget).
"""

from __future__ import annotations

from collections import deque

_WINDOW_S = 10


class RetryBudget:
    """Counts in buckets of a second. `ratio`: retries per request; `reserve`: retries a window allowed in any case."""

    __slots__ = ("_buckets", "_ratio", "_requests", "_reserve", "_retries", "refused")

    def __init__(self, *, ratio: float, reserve: int) -> None:
        self._ratio = ratio
        self._reserve = reserve
        self._buckets: deque[list[int]] = deque()
        self._requests = 0
        self._retries = 0
        self.refused = 0

    def request(self, now: float) -> None:
        """A request has come. `now` in monotonic seconds."""
        self._bucket(now)[1] += 1
        self._requests += 1

    def allows(self, now: float) -> bool:
        """Whether one more retry may be made."""
        self._bucket(now)
        if self._retries < self._reserve + self._ratio * self._requests:
            return True
        self.refused += 1
        return False

    def take(self, now: float) -> None:
        """A retry is made."""
        self._bucket(now)[2] += 1
        self._retries += 1

    def _bucket(self, now: float) -> list[int]:
        second = int(now)
        buckets = self._buckets
        while buckets and buckets[0][0] <= second - _WINDOW_S:
            _, requests, retries = buckets.popleft()
            self._requests -= requests
            self._retries -= retries
        if not buckets or buckets[-1][0] != second:
            buckets.append([second, 0, 0])
        return buckets[-1]
