"""How long workers have not answered, by a clock that runs only while their parent is awake itself. PURE.

A parent that was stopped, or whose machine was, knows nothing of the time in between: what passes from one look to the
next counts for no more than `_MOST_S`.
"""

from __future__ import annotations

LOOK_S = 1.0
"""From one look to the next."""

_MOST_S = 2 * LOOK_S
_KNOWN_S = 3 * LOOK_S


class Silence:
    """Of one worker."""

    __slots__ = ("_looked_at", "seconds")

    def __init__(self, now: float) -> None:
        """It has just been heard."""
        self._looked_at = now
        self.seconds = 0.0

    def heard(self, now: float) -> None:
        self._looked_at = now
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """Not heard since the last look. Returns how long it is by now."""
        self.seconds += min(now - self._looked_at, _MOST_S)
        self._looked_at = now
        return self.seconds

    @property
    def known(self) -> bool:
        """It is no use to wait for its answers: they have been missing for a while."""
        return self.seconds > _KNOWN_S
