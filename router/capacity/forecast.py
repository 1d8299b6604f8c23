"""Forecast: the rate of arrivals a short time ahead, from counts in bins: trend, season, jumps, error. PURE.

A line through the last bins gives level and slope; the slope counts as far as it stands out from the noise of the
counts. Where whole seasons (days) have been seen, the season's own course takes the place of the slope. A jump that
chance does not explain makes a new level of the last bins alone, at once, upwards; downwards the line may follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_JUMP = 4.0
"""Standard deviations of chance beyond which the last bins are a change and no noise."""
_RECENT = 4
"""Bins that show a jump."""
_FEW = 24
"""Bins from which on a slope is looked for."""


class Line(NamedTuple):
    """Arrivals a bin: the level at the end of the newest bin, its change a bin, and what they are worth."""

    level: float
    slope: float
    level_deviation: float
    slope_deviation: float
    dispersion: float
    """Variance over mean of the counts around the line."""
    jump: bool = False

    def ahead(self, bins: float) -> float:
        """Expected arrivals a bin, so many bins later; never negative."""
        return max(self.level + self.slope * bins, 0.0)

    def deviation(self, bins: float) -> float:
        return math.hypot(self.level_deviation, self.slope_deviation * bins)


NOTHING = Line(0.0, 0.0, 0.0, 0.0, 1.0)


def fit(counts: Sequence[float], *, doubt: float = 2.0) -> Line:
    """`counts`: whole bins, oldest first. `doubt`: the square of how many deviations a slope must stand out by to be
    believed by half."""
    size = len(counts)
    if not size:
        return NOTHING
    mean = sum(counts) / size
    if size < _FEW:
        return Line(mean, 0.0, math.sqrt(max(mean, 1.0 / size) / size), 0.0, 1.0)
    centre = (size - 1) / 2
    square = size * (size * size - 1) / 12
    slope = sum((place - centre) * count for place, count in enumerate(counts)) / square
    spread = sum((count - mean - slope * (place - centre)) ** 2 for place, count in enumerate(counts)) / (size - 2)
    noise = max(spread, mean, 1.0 / size)
    slope_deviation = math.sqrt(noise / square)
    # What stands out of chance by little counts little.
    slope *= slope * slope / (slope * slope + doubt * slope_deviation**2) if slope else 0.0
    level = max(mean + slope * (size - centre), 0.0)
    dispersion = spread / mean if mean > 0 else 1.0
    line = Line(level, slope, 2.0 * math.sqrt(noise / size), slope_deviation, dispersion)
    recent = sum(counts[-_RECENT:])
    expected = max(line.ahead(-_RECENT / 2), 0.25) * _RECENT
    if recent > expected + _JUMP * math.sqrt(max(dispersion, 1.0) * expected):
        fresh = recent / _RECENT
        return Line(fresh, 0.0, math.sqrt(recent) / _RECENT, 0.0, dispersion, jump=True)
    return line


class Season:
    """The course of a day, learnt over days: a mean rate for each slot of it."""

    def __init__(self, length_s: float = 86_400.0, slots: int = 96) -> None:
        self._length_s = length_s
        self._means = [0.0] * slots
        self._days = [0] * slots
        self._slot = -1
        self._sum, self._count = 0.0, 0

    def add(self, at: float, rate: float) -> None:
        """The mean rate of a short time up to `at` (seconds of the wall clock)."""
        slot = int(self._place(at))
        if slot != self._slot:
            self._close()
            self._slot = slot
        self._sum, self._count = self._sum + rate, self._count + 1

    def factor(self, at: float, ahead_s: float) -> float | None:
        """By how much the rate usually changes from `at` to so many seconds later; None while too little is known."""
        now, then = self._mean(at), self._mean(at + ahead_s)
        return None if now is None or then is None or now <= 0.0 else then / now

    def _close(self) -> None:
        if self._count:
            slot, mean = self._slot, self._sum / self._count
            known = self._days[slot]
            # An average of days that forgets: the newest one counts for at least a third.
            weight = max(1.0 / (known + 1), 1.0 / 3.0)
            self._means[slot] += weight * (mean - self._means[slot])
            self._days[slot] = known + 1
        self._sum, self._count = 0.0, 0

    def _mean(self, at: float) -> float | None:
        """Between the middles of two slots."""
        place = self._place(at) - 0.5
        slots = len(self._means)
        low = math.floor(place)
        share = place - low
        one, two = low % slots, (low + 1) % slots
        if not self._days[one] or not self._days[two]:
            return None
        return (1 - share) * self._means[one] + share * self._means[two]

    def _place(self, at: float) -> float:
        return (at % self._length_s) / self._length_s * len(self._means)
