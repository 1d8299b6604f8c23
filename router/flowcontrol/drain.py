"""DrainRate: how fast a queue is served, and what a refused client is told of it. PURE."""

from __future__ import annotations

import math
from collections import deque

_WINDOW_S = 10.0
_BUCKET_S = 0.5
_LEAST_S, _MOST_S = 1, 120


class DrainRate:
    """Dispatches of the last 10 s."""

    __slots__ = ("_buckets", "_count", "_since")

    def __init__(self) -> None:
        self._buckets: deque[list[float]] = deque()
        self._count = 0
        self._since: float | None = None
        """When the window's first dispatch, or the wait for it, began."""

    def begin(self, now: float) -> None:
        """Something begins to wait."""
        if self._since is None or not self._buckets:
            self._since = now

    def dispatched(self, now: float) -> None:
        buckets = self._buckets
        if self._since is None:
            self._since = now
        if buckets and now - buckets[-1][0] < _BUCKET_S:
            buckets[-1][1] += 1
        else:
            buckets.append([now, 1])
        self._count += 1
        self._forget(now)

    def per_s(self, now: float) -> float:
        """Requests a second; 0 when none was dispatched."""
        self._forget(now)
        if not self._count or self._since is None:
            return 0.0
        begin = max(self._since, now - _WINDOW_S)
        return self._count / max(now - begin, _BUCKET_S)

    def retry_after_s(self, ahead: int, now: float, otherwise_s: float) -> int:
        """Whole seconds until as many as are `ahead` will have gone; `otherwise_s` while none goes."""
        rate = self.per_s(now)
        wait_s = otherwise_s if rate <= 0.0 else (ahead + 1) / rate
        return max(_LEAST_S, min(math.ceil(wait_s), _MOST_S))

    def _forget(self, now: float) -> None:
        buckets = self._buckets
        while buckets and now - buckets[0][0] > _WINDOW_S:
            self._count -= int(buckets.popleft()[1])
