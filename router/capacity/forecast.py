"""Forecast: the rate of arrivals a short time ahead, from counts in bins: level, trend, season, changes. PURE.

A line is laid through the last bins, through as many of them as lie along it but for chance: of traffic that stays what
it is through all, after a change only through what came since. The slope counts as far as it stands out from the noise
of the counts, and reaches no further ahead than a part of the time in which it was seen. Where whole seasons (days)
have been seen, the season's own course takes the place of the slope. A rise is believed after seconds, a fall after
minutes: too much costs less than too little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

_SIZES = (120, 84, 60, 42, 30, 21, 15, 10, 7, 4)
"""Bins through which a line is laid, the most that are consistent."""
_RISE, _RISES = 4.0, (4, 12, 24)
"""Standard deviations of chance beyond which the last bins, so many of them, lie above the line."""
_FALL, _FALLS = 4.0, (24,)
"""The same below it."""
_LONG = (120, 90, 60, 40, 24)
"""Long bins through which traffic may have been the same."""
_STEADY = 3.0
"""Deviations within which it is."""
_SPREAD = 4.0
"""The same of the counts' variance around the line above that of neighbours."""
_FALLING = 4.0
"""Standard deviations of a slope beyond which a fall is none of chance."""
_FEW = 24
"""Bins from which on a variance or a fall is told from chance."""
_SLOPED = 60
"""Bins from which on a slope is looked for: drawn on, a rise of a minute would lead far beyond where it ends."""
_RECENT = 8
_REACH = 0.3
"""Part of the time through which it was seen, to which a slope reaches ahead, and of the level that it takes away."""


class Line(NamedTuple):
    """Arrivals a bin: the level at the end of the newest bin, its change a bin, and what they are worth."""

    level: float
    slope: float
    level_deviation: float
    """Of the mean."""
    slope_deviation: float
    dispersion: float
    """Variance over mean of the counts around their course."""
    size: int = 0
    """Bins through which it goes."""
    jump: bool = False
    """It goes only through what came since a change."""

    def ahead(self, bins: float) -> float:
        """Expected arrivals a bin, so many bins later."""
        return max(self.level + self.slope * min(bins, _REACH * self.size), (1.0 - _REACH) * self.level)

    def deviation(self, bins: float) -> float:
        return math.hypot(self.level_deviation, self.slope_deviation * (self.size / 2 + min(bins, _REACH * self.size)))


NOTHING = Line(0.0, 0.0, 0.0, 0.0, 1.0)


def fit(counts: Sequence[float], *, doubt: float = 2.0) -> Line:
    """`counts`: whole bins, oldest first. `doubt`: the square of how many deviations a slope must stand out by to be
    believed by half."""
    if not counts:
        return NOTHING
    dispersion = _dispersion(counts)
    for size in _SIZES:
        if size >= 2 * len(counts) and size > _SIZES[-1]:
            continue
        last = counts[-size:]
        line = _through(last, doubt, dispersion)
        if size == _SIZES[-1] or _consistent(last, line):
            jump = len(last) < min(_FEW, len(counts))
            return _after_jump(line, counts[-_FEW:]) if jump else line
    raise AssertionError("the shortest line is always taken")


def settled(counts: Sequence[float]) -> Line | None:
    """The level of traffic that has stayed what it is for long, through as many bins as tell nothing else; None when
    the last of them do. `counts`: whole long bins, oldest first."""
    for size in _LONG:
        if size > len(counts):
            continue
        last = counts[-size:]
        dispersion = _dispersion(last)
        slope, deviation = _slope(last, max(dispersion, 1.0))
        mean = sum(last) / size
        line = Line(mean, 0.0, math.sqrt(max(dispersion, 1.0) * max(mean, 1.0 / size) / size), 0.0, dispersion, size)
        if abs(slope) < _STEADY * deviation and _consistent(last, line, _STEADY):
            return line
    return None


def _after_jump(line: Line, counts: Sequence[float]) -> Line:
    """Down it goes no faster than the mean of the last minutes."""
    return line._replace(level=max(line.level, sum(counts) / len(counts)), jump=True)


def falls(counts: Sequence[float]) -> bool:
    """Whether the counts get fewer by more than chance explains. `counts`: whole bins, oldest first."""
    if len(counts) < _FEW:
        return False
    slope, deviation = _slope(counts, max(_dispersion(counts), 1.0))
    return slope < -_FALLING * deviation


def _through(counts: Sequence[float], doubt: float, dispersion: float) -> Line:
    size = len(counts)
    mean = sum(counts) / size
    noise = max(dispersion, 1.0) * max(mean, 1.0 / size)
    if size < _SLOPED:
        return Line(mean, 0.0, math.sqrt(noise / size), 0.0, dispersion, size)
    slope, deviation = _slope(counts, max(dispersion, 1.0))
    # What stands out of chance by little counts little.
    believed = slope * slope / (slope * slope + doubt * deviation**2) if slope else 0.0
    slope *= believed
    # A steep fall that has ended draws the line below what still comes.
    recent = sum(counts[-_RECENT:])
    level = max(mean + slope * size / 2, (recent - 2.0 * math.sqrt(max(dispersion, 1.0) * recent)) / _RECENT)
    # A slope that is hardly believed moves the line's end nevertheless.
    return Line(level, slope, math.sqrt(noise / size), max(believed, 0.5) * deviation, dispersion, size)


def _slope(counts: Sequence[float], dispersion: float) -> tuple[float, float]:
    """Of the line through the counts, with its deviation by chance."""
    size = len(counts)
    centre, mean = (size - 1) / 2, sum(counts) / size
    square = size * (size * size - 1) / 12
    slope = sum((place - centre) * count for place, count in enumerate(counts)) / square
    return slope, math.sqrt(dispersion * max(mean, 1.0 / size) / square)


def _dispersion(counts: Sequence[float]) -> float:
    """From one bin to the next, so that a course of the rate does not count as noise."""
    size = len(counts)
    mean = sum(counts) / size
    if size < _FEW or mean <= 0.0:
        return 1.0
    steps = sorted((later - earlier) ** 2 for earlier, later in itertools.pairwise(counts))
    # One change of the rate is not noise either.
    return sum(steps[:-1]) / (size - 2) / 2 / mean


def _consistent(counts: Sequence[float], line: Line, rise: float = _RISE) -> bool:
    """Whether the bins, and the last of them, lie along the line."""
    size = len(counts)
    if size >= _FEW and _spread(counts, line) > 1.0 + _SPREAD * math.sqrt(2.0 / size):
        return False
    for bins in (*_RISES, size // 3):
        if 4 <= bins < size and _stands_out(counts, line, bins) > rise:
            return False
    for bins in (*_FALLS, size // 3):
        if _FALLS[0] <= bins < size and _stands_out(counts, line, bins) < -_FALL:
            return False
    return True


def _spread(counts: Sequence[float], line: Line) -> float:
    """Variance of the counts around the line over what chance gives."""
    end, mean = len(counts) - 0.5, sum(counts) / len(counts)
    squares = sum((count - line.level + line.slope * (end - place)) ** 2 for place, count in enumerate(counts))
    return squares / len(counts) / (max(line.dispersion, 1.0) * max(mean, 0.25))


def _stands_out(counts: Sequence[float], line: Line, bins: int) -> float:
    """By how many deviations of chance the last so many bins lie above the line."""
    expected = max(line.level - line.slope * bins / 2, 0.25) * bins
    return (sum(counts[-bins:]) - expected) / math.sqrt(max(line.dispersion, 1.0) * expected)


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
