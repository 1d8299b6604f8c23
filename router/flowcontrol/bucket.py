"""Bucket: how much of a rate is left. PURE.

A token bucket that may go into debt: what a request costs is often known only when it is over (the tokens of its
answer), so whoever finds the bucket not empty may go, and pays what it took. Debt is paid off at the rate before
anybody else may go. Over any time t it gives at most ``capacity + rate * t`` and the last taker's overdraft.
"""

from __future__ import annotations


class Bucket:
    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        """`rate`: units a second, positive; `capacity`: units at most, at least one. Full at the beginning."""
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float, share: float = 1.0) -> float:
        """Units that are there as of `now`, negative when in debt; `share` of the rate has come in since the last call.

        A clock that steps back adds nothing.
        """
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate * share, self.capacity)
            self._at = now
        return self._level

    def take(self, units: float, now: float, share: float = 1.0) -> None:
        self.level(now, share)
        self._level -= units

    def wait_s(self, units: float, now: float, share: float = 1.0) -> float:
        """How long until more than `units` less one millionth are there, when nobody takes any."""
        missing = units - self.level(now, share)
        return max(missing / (self.rate * share), 0.0)

    def full_in_s(self, now: float, share: float = 1.0) -> float:
        return max((self.capacity - self.level(now, share)) / (self.rate * share), 0.0)
