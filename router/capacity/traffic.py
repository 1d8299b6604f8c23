"""Traffic: what came lately, by pool, quality of service and shape, in bounded memory; and the demand it makes. PURE.

Arrivals are counted in bins (`router.capacity.counting`). Lengths and cached shares are learnt from answered requests,
with a half-life, by class and by the power of four of the answer's length. `demand` puts both together for a time
ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from router.capacity.counting import BIN_S, HALF_LIFE_S, LONGEST_HALF_LIFE_S, Cell, Class, Counted, Key, Length
from router.capacity.demand import Demand, Qos, Shape, merged
from router.capacity.forecast import Line, Season

_HALF_LIFE = 1500.0
"""Answers in which what was learnt of lengths halves, within the times of `router.capacity.counting`."""
_SPREAD = 0.8
"""Of the work of single requests around its mean."""
_MOST_POOLS = 64
OTHERS = "others"
"""Name of the pool that takes the traffic of pools beyond the most that are kept."""
_SHORTEST, _LONGEST = 6, 17
"""Powers of two: prompts below and above are counted with these."""
_MOST_SHAPES = 12
_SEEN = 50.0
"""Answered requests from which on the lengths are known well."""
_DOUBT = 12.0
"""Of the slopes of single classes, which are noisy."""


class Traffic:
    """Times are seconds of the wall clock, given by the caller, and never go back by much."""

    def __init__(self, *, season_s: float = 86_400.0) -> None:
        self._season_s = season_s
        self._pools: dict[str, Counted] = {}

    # What happens

    def arrived(self, pool: str, qos: Qos, prompt_tokens: int, now: float) -> None:
        """A request, whatever becomes of it."""
        self._pool(pool, now).arrived((qos, _length(prompt_tokens)), now)

    def answered(
        self, pool: str, qos: Qos, prompt_tokens: int, cached_tokens: int, output_tokens: int, now: float
    ) -> None:
        found = self._pool(pool, now)
        found.seen += 1.0
        cell = found.of((qos, _length(prompt_tokens))).cells.setdefault(_answer(output_tokens), Cell(now))
        cell.fade(now, found.half_life_s)
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
        found.roll(now)
        total, ahead = found.total(), ahead_s / BIN_S
        factor = found.season.factor(now, ahead_s)
        expected = _later(total, ahead, factor)
        found.expects(total, expected, ahead)
        shapes = {qos: self._shapes(found, qos, total, ahead, factor, now) for qos in Qos}
        # The whole is known better than its parts: they give the mix, it gives the rate.
        parts = sum(shape.rate for each in shapes.values() for shape in each)
        whole = expected / BIN_S / parts if parts > 0.0 else 1.0
        shapes = {qos: [_times(shape, whole) for shape in each] for qos, each in shapes.items()}
        level = max(total.ahead(ahead), 1e-9)
        chance = math.hypot(min(total.deviation(ahead) / level, 1.0), _mix_error(found)) if found.bins else 0.0
        found.half_life_s = min(max(_HALF_LIFE * BIN_S / level, HALF_LIFE_S), LONGEST_HALF_LIFE_S)
        return Demand(
            shapes=merged(shapes[Qos.INTERACTIVE], _MOST_SHAPES),
            batch=merged(shapes[Qos.BATCH], _MOST_SHAPES),
            dispersion=found.dispersion,
            error=math.hypot(chance, math.sqrt(max(found.wrong, 0.0))) if found.bins else 0.0,
            chance=chance,
            calm_rate=found.calm_rate(),
            falling_s=found.falling_s(),
            confidence=found.seen / (found.seen + _SEEN / 4),
        )

    # How

    def _shapes(
        self, pool: Counted, qos: Qos, total: Line, ahead: float, factor: float | None, now: float
    ) -> list[Shape]:
        shapes: list[Shape] = []
        for key, one in list(pool.classes.items()):
            if key[0] is not qos:
                continue
            rate = _later(pool.line(one, total, _DOUBT), ahead, factor) / BIN_S
            if rate > 0.0:
                shapes += _split(one, rate, key[1], now, pool.half_life_s)
            elif not any(one.counts):
                self._tidy(pool, key, one, now)
        return shapes

    def _tidy(self, pool: Counted, key: Key, one: Class, now: float) -> None:
        if all(now - cell.at > 4 * HALF_LIFE_S for cell in one.cells.values()):
            del pool.classes[key]

    def _pool(self, name: str, now: float) -> Counted:
        found = self._pools.get(name)
        if found is None:
            if len(self._pools) >= _MOST_POOLS and name != OTHERS:
                return self._pool(OTHERS, now)
            found = self._pools[name] = Counted(Season(self._season_s), now)
        return found


def _mix_error(pool: Counted) -> float:
    """Relative deviation of what a request is expected to be."""
    known = sum(cell.count for one in pool.classes.values() for cell in one.cells.values())
    return _SPREAD / math.sqrt(max(known, 16.0))


def _later(line: Line, ahead: float, factor: float | None) -> float:
    return line.ahead(ahead) if factor is None or line.jump else line.level * factor


def _times(shape: Shape, factor: float) -> Shape:
    return msgspec.structs.replace(shape, rate=shape.rate * factor)


def _split(one: Class, rate: float, length: Length, now: float, half_life_s: float) -> list[Shape]:
    """A class's rate over the answers it led to; before any was seen, a middling one."""
    for cell in one.cells.values():
        cell.fade(now, half_life_s)
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
