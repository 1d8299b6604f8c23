"""Startups: how long engines of each variant take from being asked for to their first useful token. PURE.

An engine is asked for when a plan wants more than there are. One that is seen for the first time, or whose process is a
new one, has come of the oldest order that is open; to the time until then its first request adds what it took to its
first token, which on a cold engine is more than on others. What was given by hand counts until two have been seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from router.capacity.plan import Key

_KEPT = 8
_ENOUGH = 2
_FIRST_S = 30.0
"""An engine that had no request for so long is taken for ready when it was first seen."""
_MOST_ORDERS = 1024
_MOST_KNOWN = 4096

Process = float | None
"""When an engine's process began, as it tells; None where it does not."""


class Startups:
    """Times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._orders: dict[tuple[str, Key], deque[float]] = {}
        self._known: dict[str, Process] = {}
        self._fresh: dict[str, tuple[str, float, float]] = {}
        """Endpoint -> (variant, seconds from order to first sight, time of first sight)."""
        self._took: dict[str, deque[float]] = {}

    def asked(self, pool: str, wanted: Mapping[Key, int], ready: Mapping[Key, int], now: float) -> None:
        """A plan wants so many engines, of which so many are there."""
        for key in {*wanted, *ready, *(key for its, key in self._orders if its == pool)}:
            orders = self._orders.setdefault((pool, key), deque(maxlen=_MOST_ORDERS))
            missing = max(wanted.get(key, 0) - ready.get(key, 0), 0)
            while len(orders) > missing:
                orders.pop()
            orders.extend([now] * (missing - len(orders)))

    def seen(self, pool: str, engines: Mapping[str, tuple[Key, Process]], now: float) -> None:
        """The pool's engines that serve: endpoint -> its role and variant, and its process."""
        for name, (key, process) in engines.items():
            new = self._is_new(name, process)
            orders = self._orders.get((pool, key))
            if new and orders:
                begun = orders.popleft()
                self._fresh[name] = (key[1], now - begun, now)
        for name, (variant, took, at) in list(self._fresh.items()):
            if now - at > _FIRST_S:
                self._add(name, variant, took)

    def _is_new(self, name: str, process: Process) -> bool:
        if name not in self._known:
            if len(self._known) < _MOST_KNOWN:
                self._known[name] = process
            return True
        before = self._known[name]
        if process is not None:
            self._known[name] = process
        return None not in (before, process) and before != process

    def first_token(self, endpoint_id: str, since_dispatch_s: float) -> None:
        found = self._fresh.get(endpoint_id)
        if found is not None:
            self._add(endpoint_id, found[0], found[1] + since_dispatch_s)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint is gone."""
        self._known.pop(endpoint_id, None)
        self._fresh.pop(endpoint_id, None)

    def of(self, variant: str) -> float | None:
        """Seconds that three of four starts did not exceed; None while too few have been seen."""
        took = sorted(self._took.get(variant, ()))
        return took[(3 * len(took) - 1) // 4] if len(took) >= _ENOUGH else None

    def _add(self, name: str, variant: str, took: float) -> None:
        del self._fresh[name]
        self._took.setdefault(variant, deque(maxlen=_KEPT)).append(took)
