"""Standing still: an engine that has requests of ours and gives no sign of working on any of them. PURE.

A paused engine, or one whose core hangs behind a living HTTP server, answers its probes and its metrics page. What it
does not do is move: no byte comes over any connection, and nothing on the page changes. `Pulse` is what shows life, and
`StallTracker` the time since it last did.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class StallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    after_s: float = 30.0
    """Without a sign of life while requests are under way."""
    interval_s: float = 1.0
    """Between two looks."""
    most_s: float = 300.0
    """Longest time out; the first is `after_s`, doubled each time it is found to stand still again."""


class Pulse(NamedTuple):
    requests: int
    """Ours that are on the engine."""
    heard_at: float | None
    """When answers last brought bytes; only whether it changes counts."""
    page: tuple[float | None, ...] | None
    """What the metrics page says of work (`PageReading.pulse`); None: no page that is recent."""


class StallTracker:
    """One engine's. Mutable, owned by `router.pool.stalls.Stalls`."""

    __slots__ = ("_pulse", "_since", "out_until", "times")

    def __init__(self, now: float) -> None:
        self._pulse: Pulse | None = None
        self._since = now
        self.times = 0
        """Found to stand still in a row."""
        self.out_until: float | None = None

    def look(self, pulse: Pulse, now: float) -> None:
        last, self._pulse = self._pulse, pulse
        if not pulse.requests or last is None or not last.requests or pulse.page is None:
            self._since = now
        elif pulse.heard_at != last.heard_at or pulse.page != last.page:
            self._since = now
            self.times = 0

    def reset(self, now: float) -> None:
        self._since = now

    @property
    def busy(self) -> bool:
        return self._pulse is not None and self._pulse.requests > 0

    def still_s(self, now: float) -> float:
        """For how long it has shown no life under load."""
        return now - self._since
