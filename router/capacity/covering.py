"""Covering: the cheapest numbers of engines of one role, by branch and bound over its variants. PURE.

What `router.capacity.programme` writes as an integer programme is small where no quota ties pools together: a few
variants, a few tiers. Numbers are tried variant by variant, the best of its money first, and a branch is left when even
fractions of engines could not make it cheaper than what was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_EPSILON = 1e-9
_MOST_NODES = 20_000
"""Of the search; then the best found counts. No limit of time: a plan must not depend on how busy the machine is."""


class Kind(NamedTuple):
    """A variant in one role. Money an hour, requests a second."""

    price: float
    start: float
    """Added for each engine above `present`."""
    drain: float
    """Added for each below; less than `price`."""
    present: int
    low: int
    high: int
    good: Sequence[float]
    """By tier, what an engine takes with the objective met."""
    stable: float
    """What one takes without growing queues."""
    whole: float
    """The same of interactive and batch requests together."""

    def cost(self, count: int) -> float:
        more = count - self.present
        return self.price * count + (self.start * more if more > 0 else -self.drain * more)

    @property
    def slope(self) -> float:
        """What one engine more costs at the least."""
        return self.price - self.drain if self.present > self.low else self.price + self.start


class Wanted(NamedTuple):
    """Of all kinds together."""

    rate: float
    total_rate: float
    """Interactive and batch together; 0: there is no batch."""
    survive_rate: float
    """What must be carried with any one engine gone; 0: nothing."""
    least: int
    most: int


class Cover(NamedTuple):
    counts: tuple[int, ...]
    """By kind, in the order given."""
    cost: float
    """Changes included."""


def cheapest(kinds: Sequence[Kind], tiers: Sequence[int], wanted: Wanted) -> Cover | None:
    """`tiers`: numbers of engines from which on each kind's `good` of the same place counts. None: none suffices."""
    if any(kind.low > kind.high for kind in kinds):
        return None
    search = _Search(kinds, wanted)
    for place, size in enumerate(tiers):
        search.tier(place, size)
    if search.best is None:
        return None
    return Cover(tuple(search.best), search.cost)


class _Search:
    def __init__(self, kinds: Sequence[Kind], wanted: Wanted) -> None:
        self._kinds, self._wanted = kinds, wanted
        self._nodes = 0
        self._strongest = max((kind.stable for kind in kinds), default=0.0)
        self.best: list[int] | None = None
        self.cost = math.inf

    def tier(self, place: int, size: int) -> None:
        """The best with so many engines at least, if it is better than what was found."""
        wanted = self._wanted
        self._order = sorted(
            range(len(self._kinds)),
            key=lambda number: self._kinds[number].slope / max(self._kinds[number].good[place], 1e-12),
        )
        self._line = [self._kinds[number] for number in self._order]
        # In each row what an engine of each kind gives of: requests in time, number, requests in all, what is stable.
        self._gains = [(kind.good[place], 1.0, kind.whole, kind.stable) for kind in self._line]
        needs = (wanted.rate, float(max(size, wanted.least)), wanted.total_rate, wanted.survive_rate)
        self._rows = [row for row, need in enumerate(needs) if need > 0.0]
        self._floors()
        self._dive(0, [needs[row] for row in self._rows], 0, 0.0, 0.0, [])

    def _floors(self) -> None:
        """From each kind on: what its least numbers cost and give, and the least price of a unit beyond."""
        size = len(self._line)
        self._base = [0.0] * (size + 1)
        self._given = [[0.0] * len(self._rows) for _ in range(size + 1)]
        self._unit = [[math.inf] * len(self._rows) for _ in range(size + 1)]
        for place in range(size - 1, -1, -1):
            kind, gains = self._line[place], self._gains[place]
            self._base[place] = self._base[place + 1] + kind.cost(kind.low)
            for column, row in enumerate(self._rows):
                self._given[place][column] = self._given[place + 1][column] + kind.low * gains[row]
                unit = kind.slope / gains[row] if gains[row] > 0.0 and kind.high > kind.low else math.inf
                self._unit[place][column] = min(self._unit[place + 1][column], unit)

    def _dive(
        self, place: int, left: list[float], total: int, strongest: float, cost: float, chosen: list[int]
    ) -> None:
        """`left`: what is still wanted of each row; `strongest`: stable rate of the strongest kind taken."""
        self._nodes += 1
        if self._nodes > _MOST_NODES and self.best is not None:
            return
        if place == len(self._line):
            self._take(left, total, strongest, cost, chosen)
            return
        if cost + self._rest(place, left, strongest) >= self.cost - _EPSILON:
            return
        kind, gains = self._line[place], self._gains[place]
        last = place + 1 == len(self._line)
        for count in self._numbers(kind, gains, left, strongest, total):
            strong = max(strongest, kind.stable) if count else strongest
            rest = [need - count * gains[row] for need, row in zip(left, self._rows, strict=True)]
            self._dive(place + 1, rest, total + count, strong, cost + kind.cost(count), [*chosen, count])
            if last and self._met(rest, strong):
                return

    def _numbers(
        self, kind: Kind, gains: tuple[float, ...], left: list[float], strongest: float, total: int
    ) -> Sequence[int]:
        """From as many as would do alone down to the least; of the last kind, upwards from the first that may do."""
        top = kind.low
        bottom = kind.low
        only = kind is self._line[-1]
        for need, row in zip(left, self._rows, strict=True):
            if gains[row] <= 0.0:
                continue
            beyond = self._strongest if row == _STABLE else 0.0
            top = max(top, math.ceil((need + beyond) / gains[row] - _EPSILON))
            if only:
                least = strongest if row == _STABLE else 0.0
                bottom = max(bottom, math.ceil((need + least) / gains[row] - _EPSILON))
        most = min(kind.high, self._wanted.most - total)
        if only:
            return range(bottom, min(top, most) + 1)
        return range(min(top, most), kind.low - 1, -1)

    def _rest(self, place: int, left: list[float], strongest: float) -> float:
        """No less than this is to be paid from this kind on."""
        most = 0.0
        for column, row in enumerate(self._rows):
            need = left[column] - self._given[place][column] + (strongest if row == _STABLE else 0.0)
            if need > _EPSILON:
                most = max(most, need * self._unit[place][column])
        return self._base[place] + most

    def _met(self, left: list[float], strongest: float) -> bool:
        return all(
            need + (strongest if row == _STABLE else 0.0) <= _EPSILON * 1e3
            for need, row in zip(left, self._rows, strict=True)
        )

    def _take(self, left: list[float], total: int, strongest: float, cost: float, chosen: list[int]) -> None:
        if total <= self._wanted.most and self._met(left, strongest) and cost < self.cost - _EPSILON:
            self.cost = cost
            self.best = [0] * len(chosen)
            for number, count in zip(self._order, chosen, strict=True):
                self.best[number] = count


_STABLE = 3
"""The row of which the strongest engine may be missing."""
