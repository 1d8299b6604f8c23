"""Traffic: what came lately, by pool, quality of service and shape, in bounded memory; and the demand it makes. PURE.

Arrivals are counted in bins of `BIN_S` over a sliding window, by class: pool (model), quality of service and the power
of two of the prompt's length. Lengths and cached shares are learnt from answered requests, with a half-life, by class
and by the power of four of the answer's length. `demand` puts both together for a time ahead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from router.capacity.demand import Demand, Qos, Shape, merged
from router.capacity.forecast import NOTHING, Line, Season, fit

BIN_S = 5.0
_BINS = 120
"""Ten minutes."""
_HALF_LIFE_S = 300.0
_MOST_POOLS = 64
OTHERS = "others"
"""Name of the pool that takes the traffic of pools beyond the most that are kept."""
_SHORTEST, _LONGEST = 6, 17
"""Powers of two: prompts below and above are counted with these."""
_MOST_SHAPES = 12
_SEEN = 50.0
"""Answered requests from which on the lengths are known well."""
_DUE = 64
_DOUBT = 12.0
"""Of the slopes of single classes, which are noisy."""

Length = int


class _Cell:
    """Sums over answered requests that are alike, halved every `_HALF_LIFE_S`."""

    __slots__ = ("at", "cached", "count", "new", "output")

    def __init__(self, at: float) -> None:
        self.at = at
        self.count = self.new = self.cached = self.output = 0.0

    def fade(self, now: float) -> None:
        keep = 0.5 ** (max(now - self.at, 0.0) / _HALF_LIFE_S)
        self.count, self.new = self.count * keep, self.new * keep
        self.cached, self.output = self.cached * keep, self.output * keep
        self.at = now


class _Class:
    """Arrivals of one prompt length and quality, and the answers they led to."""

    __slots__ = ("cells", "counts")

    def __init__(self) -> None:
        self.counts: deque[int] = deque([0] * _BINS, maxlen=_BINS)
        """Of whole bins; the one that is filled now is the pool's."""
        self.cells: dict[int, _Cell] = {}


class _Pool:
    __slots__ = ("bin", "bins", "classes", "due", "error", "filling", "last_at", "season", "seen")

    def __init__(self, season: Season, number: int) -> None:
        self.classes: dict[tuple[Qos, Length], _Class] = {}
        self.filling: dict[tuple[Qos, Length], int] = {}
        self.bin = number
        self.bins = 0
        """Whole ones since the first arrival, at most `_BINS`."""
        self.season = season
        self.due: deque[tuple[int, float]] = deque(maxlen=_DUE)
        """Forecasts: (bin they were for, arrivals a bin)."""
        self.error = 0.1
        self.seen = 0.0
        self.last_at: float | None = None


class Traffic:
    """Times are seconds of the wall clock, given by the caller, and never go back by much."""

    def __init__(self, *, season_s: float = 86_400.0) -> None:
        self._season_s = season_s
        self._pools: dict[str, _Pool] = {}

    # What happens

    def arrived(self, pool: str, qos: Qos, prompt_tokens: int, now: float) -> None:
        """A request, whatever becomes of it."""
        found = self._pool(pool, now)
        self._roll(found, now)
        key = (qos, _length(prompt_tokens))
        found.filling[key] = found.filling.get(key, 0) + 1
        found.last_at = now

    def answered(
        self, pool: str, qos: Qos, prompt_tokens: int, cached_tokens: int, output_tokens: int, now: float
    ) -> None:
        found = self._pool(pool, now)
        found.seen += 1.0
        one = self._class(found, (qos, _length(prompt_tokens)))
        cell = one.cells.setdefault(_answer(output_tokens), _Cell(now))
        cell.fade(now)
        cell.count += 1
        cell.new += max(prompt_tokens - cached_tokens, 1)
        cell.cached += cached_tokens
        cell.output += output_tokens

    # What is asked

    def pools(self) -> Iterable[str]:
        return self._pools.keys()

    def last_arrival(self, pool: str) -> float | None:
        found = self._pools.get(pool)
        return None if found is None else found.last_at

    def demand(self, pool: str, now: float, ahead_s: float) -> Demand:
        """What is expected so many seconds from now; nothing for a pool that nobody asked for."""
        found = self._pools.get(pool)
        if found is None:
            return Demand(confidence=0.0)
        self._roll(found, now)
        total = fit([sum(c) for c in zip(*self._counts(found, None), strict=True)]) if found.classes else NOTHING
        ahead = ahead_s / BIN_S
        factor = found.season.factor(now, ahead_s)
        if found.bins:
            found.due.append((found.bin + int(ahead), _later(total, ahead, factor)))
        shapes = {qos: self._shapes(found, qos, total, ahead, factor, now) for qos in Qos}
        # The whole is known better than its parts: they give the mix, it gives the rate.
        parts = sum(shape.rate for each in shapes.values() for shape in each)
        whole = _later(total, ahead, factor) / BIN_S / parts if parts > 0.0 else 1.0
        shapes = {qos: [_times(shape, whole) for shape in each] for qos, each in shapes.items()}
        level = max(total.ahead(ahead), 1e-9)
        chance = min(total.deviation(ahead) / level, 1.0)
        return Demand(
            shapes=merged(shapes[Qos.INTERACTIVE], _MOST_SHAPES),
            batch=merged(shapes[Qos.BATCH], _MOST_SHAPES),
            dispersion=min(max(total.dispersion, 0.7), 4.0),
            error=math.hypot(chance, found.error) if found.bins else 0.0,
            confidence=found.seen / (found.seen + _SEEN / 4),
        )

    # How

    def _shapes(
        self, pool: _Pool, qos: Qos, total: Line, ahead: float, factor: float | None, now: float
    ) -> list[Shape]:
        shapes: list[Shape] = []
        for (its_qos, length), one in list(pool.classes.items()):
            if its_qos is not qos:
                continue
            counts = list(one.counts)[_BINS - max(pool.bins, 1) :]
            line = fit(counts, doubt=_DOUBT)
            if total.jump and not line.jump:
                # The whole shows a jump that a part is too small to show.
                recent = counts[-4:]
                line = Line(max(sum(recent) / len(recent), line.level), 0.0, 0.0, 0.0, 1.0)
            rate = _later(line, ahead, factor) / BIN_S
            if rate > 0.0:
                shapes += _split(one, rate, length, now)
            elif not any(one.counts):
                self._tidy(pool, (its_qos, length), one, now)
        return shapes

    def _tidy(self, pool: _Pool, key: tuple[Qos, Length], one: _Class, now: float) -> None:
        if all(now - cell.at > 4 * _HALF_LIFE_S for cell in one.cells.values()):
            del pool.classes[key]

    def _counts(self, pool: _Pool, qos: Qos | None) -> list[list[int]]:
        first = _BINS - max(pool.bins, 1)
        return [list(one.counts)[first:] for key, one in pool.classes.items() if qos is None or key[0] is qos]

    def _pool(self, name: str, now: float) -> _Pool:
        found = self._pools.get(name)
        if found is None:
            if len(self._pools) >= _MOST_POOLS and name != OTHERS:
                return self._pool(OTHERS, now)
            found = self._pools[name] = _Pool(Season(self._season_s), int(now // BIN_S))
        return found

    def _class(self, pool: _Pool, key: tuple[Qos, Length]) -> _Class:
        return pool.classes.setdefault(key, _Class())

    def _roll(self, pool: _Pool, now: float) -> None:
        """Closes the bins that are over."""
        number = int(now // BIN_S)
        if number <= pool.bin:
            return
        for key in pool.filling:
            self._class(pool, key)
        passed = min(number - pool.bin, _BINS)
        for key, one in pool.classes.items():
            one.counts.append(pool.filling.get(key, 0))
            one.counts.extend([0] * (passed - 1))
        arrived = sum(pool.filling.values())
        pool.filling.clear()
        pool.bins = min(pool.bins + passed, _BINS)
        pool.bin = number
        pool.season.add(now - BIN_S, arrived / passed / BIN_S)
        self._judge(pool)

    def _judge(self, pool: _Pool) -> None:
        """How wrong the forecasts were that are due, chance apart."""
        while pool.due and pool.due[0][0] <= pool.bin:
            _, expected = pool.due.popleft()
            counts = self._counts(pool, None)
            recent = [sum(column) for column in zip(*[c[-6:] for c in counts], strict=True)]
            came = sum(recent) / len(recent) if recent else 0.0
            scale = max(expected, came, 0.2)
            off = max((came - expected) ** 2 - came / max(len(recent), 1), 0.0) / scale**2
            pool.error = math.sqrt(pool.error**2 + 0.02 * (off - pool.error**2))


def _later(line: Line, ahead: float, factor: float | None) -> float:
    return line.ahead(ahead) if factor is None or line.jump else line.level * factor


def _times(shape: Shape, factor: float) -> Shape:
    return msgspec.structs.replace(shape, rate=shape.rate * factor)


def _split(one: _Class, rate: float, length: Length, now: float) -> list[Shape]:
    """A class's rate over the answers it led to; before any was seen, a middling one."""
    for cell in one.cells.values():
        cell.fade(now)
    cells = [cell for cell in one.cells.values() if cell.count > 0.05]
    total = sum(cell.count for cell in cells)
    if not total:
        return [Shape(rate=rate, new_tokens=1.5 * 2.0**length, output_tokens=256.0)]
    return [
        Shape(
            rate=rate * cell.count / total,
            new_tokens=cell.new / cell.count,
            cached_tokens=cell.cached / cell.count,
            output_tokens=cell.output / cell.count,
        )
        for cell in cells
    ]


def _length(tokens: int) -> Length:
    return min(max(int(tokens).bit_length() - 1, _SHORTEST), _LONGEST)


def _answer(tokens: int) -> int:
    return min(max(int(tokens).bit_length() - 1, 0) // 2, 7)
