"""Budget: of the requests that may miss their objective, as long as few do, more may at one moment. PURE.

The objective is a share of all requests. Engines are whole, forecasts err to the safe side, and load changes: a fleet
that is planned for that share at each moment attains more of it over the hours. What is left over is spent: while the
record of the last window shows few misses, up to `_MOST` times the share of them is planned for at one moment, and none
of the forecast's error. Once the record shows that the budget is being used up, over the whole window or fast, what was
asked for is planned for again until the load has become another: on steady load it would else be found out again and
again, with a scale-in and a scale-out each time.
"""

from __future__ import annotations

import math

from router.capacity.plan import Record

_MOST = 3.0
LATELY = 12
"""Of which part of the window a record tells apart."""
_SURE = 300
"""Requests that must have been answered for the record to count in full."""
_FEWEST = 3.0
"""Misses that a window allows, however few requests there were."""
_SPENT = 0.7
"""Part of the allowed misses from which on none are planned for beyond the objective."""
_FAST, _FAST_FEWEST = 6.0, 6
"""So many times the allowed misses lately, and at least so many, are too many whatever the window says."""
_GROWS = 0.5
"""Part of the window within which the ease comes back."""
_OTHER = 1.2
"""A load so many times as great or as small is another."""


class Budget:
    """One pool. Times are the caller's, in seconds, and do not go back."""

    def __init__(self) -> None:
        self._ease = 1.0
        self._at = math.inf
        self._load = 0.0
        self._barred: float | None = None
        """The load at which the budget was used up."""

    def loaded(self, load: float) -> None:
        """Engine time a second that is asked for now."""
        self._load = load
        if self._barred is not None and not self._barred / _OTHER < load < self._barred * _OTHER:
            self._barred = None

    def ease(self, now: float, record: Record, attainment: float, window_s: float) -> float:
        """0: as asked for; 1: with as many misses as may be planned for at one moment."""
        passed, self._at = max(now - self._at, 0.0), now
        # A window that has only begun allows what it will hold at the present rate.
        allowed = max((1.0 - attainment) * max(record.answered, LATELY * record.lately), _FEWEST)
        fast = max(_FAST * (1.0 - attainment) * record.lately, _FAST_FEWEST)
        if record.missed >= _SPENT * allowed or record.missed_lately >= fast:
            self._barred, self._ease = self._load, 0.0
        elif self._barred is None:
            self._ease = min(self._ease + passed / (_GROWS * window_s), 1.0)
        return min(self._ease, record.answered / _SURE)


def eased(attainment: float, ease: float) -> float:
    """The share to plan for at one moment."""
    return 1.0 - (1.0 - attainment) * (1.0 + (_MOST - 1.0) * ease)
