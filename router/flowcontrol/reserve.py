"""Reserve: room on each endpoint that lower priorities leave free while a higher one sends requests. PURE."""

from __future__ import annotations

_LATELY_S = 60.0


class Reserve:
    """`holdback`, requests of room on each endpoint, may be replaced at run time."""

    __slots__ = ("_top_at", "holdback", "top")

    def __init__(self, holdback: int) -> None:
        self.holdback = holdback
        self.top = -1_000
        """The highest class that sent something lately."""
        self._top_at = 0.0

    def kept_from(self, priority: int, now: float, *, others_wait: bool) -> int:
        """A request of that priority comes: the room on each endpoint that it must leave."""
        if priority >= self.top or not self._lately(now):
            self.top, self._top_at = priority, now
            return 0
        return self.room(now, others_wait=others_wait)

    def room(self, now: float, *, others_wait: bool) -> int:
        """What is kept from those below `top` now. With others that fill the same endpoints from news a little old,
        each leaves one place more."""
        if not self.holdback or not self._lately(now):
            return 0
        return self.holdback + (1 if others_wait else 0)

    def _lately(self, now: float) -> bool:
        return now - self._top_at <= _LATELY_S
