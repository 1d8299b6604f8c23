"""Counting: one pool's arrivals in bins, by class, and what its answers taught, in bounded memory. PURE.

A class is quality of service and the power of two of the prompt's length. Bins of `BIN_S` go back ten minutes, whole
minutes two hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from router.capacity.demand import Qos
from router.capacity.forecast import NOTHING, Line, Season, falls, fit, settled

BIN_S = 5.0
_BINS = 120
_MINUTES = 120
_MINUTE_BINS = int(60.0 / BIN_S)
HALF_LIFE_S, LONGEST_HALF_LIFE_S = 300.0, 1800.0
_CALM_MINUTES, _FEWEST_MINUTES = 60, 4
_FALL_MINUTES = (30, 60, _MINUTES)
_DUE = 64
_WEIGHT = 0.02
_WRONG = 0.04
"""The most that one forecast's squared error counts: a change nobody could foresee says little of the next hour."""
_DISPERSION = (0.7, 4.0)

Length = int
Key = tuple[Qos, Length]


class Cell:
    """Sums over answered requests that are alike, which fade."""

    __slots__ = ("at", "cached", "count", "new", "output")

    def __init__(self, at: float) -> None:
        self.at = at
        self.count = self.new = self.cached = self.output = 0.0

    def fade(self, now: float, half_life_s: float) -> None:
        keep = 0.5 ** (max(now - self.at, 0.0) / half_life_s)
        self.count, self.new = self.count * keep, self.new * keep
        self.cached, self.output = self.cached * keep, self.output * keep
        self.at = now


class Class:
    """Arrivals of one prompt length and quality, and the answers they led to."""

    __slots__ = ("cells", "counts", "minutes")

    def __init__(self) -> None:
        self.counts: deque[int] = deque([0] * _BINS, maxlen=_BINS)
        """Of whole bins; the one that is filled now is the pool's."""
        self.minutes: deque[int] = deque([0] * _MINUTES, maxlen=_MINUTES)
        """Of whole minutes."""
        self.cells: dict[int, Cell] = {}


class _Due(NamedTuple):
    """A forecast, to be held against what comes."""

    bin: int
    """For which it was made."""
    expected: float
    """Arrivals a bin."""
    deviation: float
    dispersion: float


class Counted:
    """One pool. Times are seconds of the wall clock."""

    def __init__(self, season: Season, now: float) -> None:
        self.classes: dict[Key, Class] = {}
        self._filling: dict[Key, int] = {}
        self._bin = int(now // BIN_S)
        self.bins = 0
        """Whole ones since the first arrival, at most ten minutes."""
        self._minutes = 0
        """Whole ones, at most two hours."""
        self._left = _MINUTE_BINS
        """Bins until the minute is whole."""
        self.season = season
        self._due: deque[_Due] = deque(maxlen=_DUE)
        self.wrong = 0.01
        """Mean square of the forecasts' relative errors, chance apart; below 0 when chance was kind."""
        self.seen = 0.0
        """Answered requests."""
        self.dispersion = 1.0
        """As it has been for long: of a few minutes it is not known well."""
        self.half_life_s = HALF_LIFE_S
        """Of what is known of lengths."""
        self.last_at: float | None = None

    # What happens

    def arrived(self, key: Key, now: float) -> None:
        self.roll(now)
        self._filling[key] = self._filling.get(key, 0) + 1
        self.last_at = now

    def of(self, key: Key) -> Class:
        return self.classes.setdefault(key, Class())

    def roll(self, now: float) -> None:
        """Closes the bins that are over."""
        number = int(now // BIN_S)
        if number <= self._bin:
            return
        for key in self._filling:
            self.of(key)
        passed = min(number - self._bin, _MINUTES * _MINUTE_BINS)
        for place in range(passed):
            self._close({} if place else self._filling)
        arrived = sum(self._filling.values())
        self._filling.clear()
        self.bins = min(self.bins + passed, _BINS)
        self._bin = number
        self.season.add(now - BIN_S, arrived / passed / BIN_S)
        self._judge()

    def _close(self, filling: Mapping[Key, int]) -> None:
        """One bin."""
        self._left -= 1
        for key, one in self.classes.items():
            one.counts.append(filling.get(key, 0))
            if not self._left:
                one.minutes.append(sum(list(one.counts)[-_MINUTE_BINS:]))
        if not self._left:
            self._left = _MINUTE_BINS
            self._minutes = min(self._minutes + 1, _MINUTES)

    def expects(self, line: Line, expected: float, bins: float) -> None:
        """A forecast for so many bins ahead, in arrivals a bin."""
        if self.bins:
            dispersion = max(line.dispersion, 1.0)
            self._due.append(_Due(self._bin + int(bins), expected, line.deviation(bins), dispersion))
        low, high = _DISPERSION
        self.dispersion += _WEIGHT / 2 * (min(max(line.dispersion, low), high) - self.dispersion)

    def _judge(self) -> None:
        """How wrong the forecasts were that are due, chance apart."""
        while self._due and self._due[0].bin <= self._bin:
            due = self._due.popleft()
            recent = _sums([list(one.counts)[-6:] for one in self.classes.values()])
            came = sum(recent) / len(recent) if recent else 0.0
            scale = max(due.expected, came, 0.2)
            chance = due.dispersion * came / max(len(recent), 1) + due.deviation**2
            off = min(((came - due.expected) ** 2 - chance) / scale**2, _WRONG)
            self.wrong += _WEIGHT * (off - self.wrong)

    # What it comes to

    def total(self) -> Line:
        """Of all classes."""
        if not self.classes:
            return NOTHING
        line = fit(_sums(self._counts(self.classes.values())))
        return line if line.jump else self._longer(line, self._whole_minutes(self.classes.values()))

    def line(self, one: Class, total: Line, doubt: float) -> Line:
        """Of one class; the whole shows a change that a part is too small to show."""
        (counts,) = self._counts([one])
        line = fit(counts[-total.size :] if total.jump else counts, doubt=doubt)
        return line if total.jump or line.jump else self._longer(line, self._whole_minutes([one]))

    def calm_rate(self) -> float:
        """Interactive requests a second that a quarter of the last hour's minutes do not exceed; before there are some,
        what there is."""
        classes = [one for key, one in self.classes.items() if key[0] is Qos.INTERACTIVE]
        if not classes:
            return 0.0
        if self._minutes < _FEWEST_MINUTES:
            counts = _sums(self._counts(classes))
            return sum(counts) / len(counts) / BIN_S
        minutes = sorted(self._whole_minutes(classes)[-_CALM_MINUTES:])
        return minutes[len(minutes) // 4] / 60.0

    def falling_s(self) -> float | None:
        """The shortest of some times over which it falls."""
        if not self.classes:
            return None
        counts = _sums(self._counts(self.classes.values()))
        if falls(counts):
            return len(counts) * BIN_S
        minutes = self._whole_minutes(self.classes.values())
        for size in _FALL_MINUTES:
            if len(minutes) >= size and falls(minutes[-size:]):
                return size * 60.0
        return None

    def _longer(self, line: Line, minutes: Sequence[int]) -> Line:
        """Through whole hours, where the traffic has stayed what it is for so long."""
        long = settled(minutes)
        if long is None:
            return line
        level, deviation = long.level / _MINUTE_BINS, long.level_deviation / _MINUTE_BINS
        return Line(level, 0.0, deviation, 0.0, line.dispersion, long.size * _MINUTE_BINS)

    def _counts(self, classes: Iterable[Class]) -> list[list[int]]:
        first = _BINS - max(self.bins, 1)
        return [list(one.counts)[first:] for one in classes]

    def _whole_minutes(self, classes: Iterable[Class]) -> list[int]:
        return _sums([list(one.minutes) for one in classes])[_MINUTES - self._minutes :]


def _sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]
