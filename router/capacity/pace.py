"""Pace: how many prompts an engine is given and how much of its time they take, lately. PURE.

What it is for is the price of a queue. A second of prefill put behind a backlog of V seconds delays everybody who comes
before the engine is idle again: in an M/G/1 queue ``rate / (1 - share) * (V + w / 2)`` seconds for each of its w
seconds (the difference of the queue's value function, Hyytia, Penttinen and Aalto 2012). Half of that is charged, since
a router sends those who come later elsewhere.
"""

from __future__ import annotations

from math import exp

_MEMORY_S = 60.0
_MOST_SHARE = 0.8
"""Of its time that an engine is taken to compute prompts, at most: beyond, the law has no end."""
_AVOIDING = 0.5
"""Share of those who would be delayed that still come, with a router that sees the queue."""


class Pace:
    """One endpoint. Times are the caller's."""

    __slots__ = ("_at", "_prompts", "_since", "_work_s")

    def __init__(self) -> None:
        self._prompts = 0.0
        self._work_s = 0.0
        self._at: float | None = None
        self._since = 0.0

    def add(self, work_s: float, now: float) -> None:
        """A prompt of so much prefill was dispatched."""
        if self._at is None:
            self._at = self._since = now
        kept = exp((self._at - now) / _MEMORY_S)
        self._prompts = self._prompts * kept + 1.0
        self._work_s = self._work_s * kept + work_s
        self._at = now

    def delayed_per_s(self, now: float) -> float:
        """Seconds of others' waiting for a second of prefill and a second of backlog before it; in 1/s."""
        if self._at is None:
            return 0.0
        kept = exp((self._at - now) / _MEMORY_S)
        # Before the memory is full, what was seen is over less time.
        seen_s = _MEMORY_S * (1.0 - exp((self._since - now - 1.0) / _MEMORY_S))
        share = self._work_s * kept / seen_s
        return _AVOIDING * self._prompts * kept / seen_s / (1.0 - min(share, _MOST_SHARE))
