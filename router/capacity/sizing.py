"""Sizing: for one role of a pool, what an engine of each variant can take, by how many engines there are. PURE.

The law's capacity of an engine grows with the number beside it (a queue with more servers waits less at the same
utilization), so it is tabulated over the numbers that come into question, and `router.capacity.programme` chooses
among them. Of engines of different variants side by side each is taken to carry load in proportion to its capacity
there, which is what a router that levels waiting times does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from router.capacity.demand import Demand, Objective, merged
from router.capacity.performance import Array, Law
from router.capacity.variants import Variant
from router.core import Role

_SHAPES = 8
_TIERS = 6
"""Numbers of engines that are tabulated; between two of them the lower one's capacities count."""
_MOST = 4096
_SPLIT = {Role.BOTH: 1.0, Role.PREFILL: 0.75, Role.DECODE: 0.25}
"""Which part of the requests that may miss their objective each role may make miss it."""


class Sizing(NamedTuple):
    """One role under one mix of shapes. Arrays are by [variant, tier]."""

    role: Role
    variants: tuple[Variant, ...]
    law: Law
    attainment: float
    """Share wanted of this role, lowered to what is possible at all."""
    possible: float
    """Share that the best variant would serve in time if nobody else were there."""
    tiers: tuple[int, ...]
    """Numbers of engines, ascending."""
    good: Array
    stable: Array
    limit: Array
    alone: tuple[int | None, ...]
    """Of each variant, how many it takes without the others; None when it never meets the objective."""
    work_s: float
    """Of the variants' time together that a request takes, one engine of each: how heavy requests are, whatever number
    of engines is in question."""

    def capacity(self, counts: Sequence[int]) -> float:
        """Requests a second that engines of these numbers (by variant) take with the objective met."""
        return self._sum(self.good, counts)

    def most(self, counts: Sequence[int]) -> float:
        """The same without growing queues."""
        return self._sum(self.stable, counts)

    def strongest(self, counts: Sequence[int]) -> float:
        """What is lost of `most` when the one engine fails that takes most; 0 of none."""
        first = [float(value) for value in self.stable[:, 0]]
        return max((value for value, count in zip(first, counts, strict=True) if count), default=0.0)

    def attained(self, counts: Sequence[int], rate: float) -> float:
        """Share of requests that so many engines would serve within the objective at that rate."""
        weight = self._weights(counts)
        total = sum(w * n for w, n in zip(weight, counts, strict=True))
        if not total:
            return 1.0 if not rate else 0.0
        each = np.array([rate * w / total for w in weight])[:, None]
        share = self.law.attained(np.full((1, 1), float(sum(counts))), each).both[:, 0]
        return float(sum(s * w * n for s, w, n in zip(share, weight, counts, strict=True)) / total)

    def binding(self, counts: Sequence[int]) -> str:
        """What limits the variant that carries most: ttft, tpot, kv or stability."""
        tier, weight = self._tier(counts), self._weights(counts)
        carried = [w * n for w, n in zip(weight, counts, strict=True)]
        return str(self.limit[int(np.argmax(carried)), tier])

    def _weights(self, counts: Sequence[int]) -> list[float]:
        tier = self._tier(counts)
        good = [float(value) for value in self.good[:, tier]]
        if not any(g for g, n in zip(good, counts, strict=True) if n):
            return [float(value) for value in self.stable[:, tier]]
        return good

    def _sum(self, values: Array, counts: Sequence[int]) -> float:
        tier = self._tier(counts)
        return float(sum(float(value) * n for value, n in zip(values[:, tier], counts, strict=True)))

    def _tier(self, counts: Sequence[int]) -> int:
        total = sum(counts)
        return max((place for place, size in enumerate(self.tiers) if size <= total), default=0)


def size(
    role: Role, variants: Sequence[Variant], demand: Demand, objective: Objective, present: Sequence[int], rate: float
) -> Sizing:
    """`present`: engines there are, by variant; `rate`: what must be carried, in which `demand` is only the mix."""
    shapes = merged(demand.shapes, _SHAPES)
    law = Law(variants, role, shapes, objective, dispersion=demand.dispersion)
    possible = law.idle()
    missing = (1.0 - objective.attainment) * _SPLIT[role]
    attainment = min(1.0 - missing, possible * (1.0 - missing))
    alone = _alone(law, len(variants), rate, attainment)
    tiers = _tiers([count for count in alone if count is not None], sum(present))
    capacities = law.capacities([1, *tiers], attainment)
    together = float(capacities.good[:, 0].sum()) or float(capacities.stable[:, 0].sum())
    return Sizing(
        role=role,
        variants=tuple(variants),
        law=law,
        attainment=attainment,
        possible=possible,
        tiers=tiers,
        good=capacities.good[:, 1:],
        stable=capacities.stable[:, 1:],
        limit=capacities.limit[:, 1:],  # type: ignore[arg-type]
        alone=tuple(alone),
        work_s=1.0 / together,
    )


def _alone(law: Law, variants: int, rate: float, attainment: float) -> list[int | None]:
    """By bisection over the number of engines, all variants at once."""
    low, high = np.zeros(variants), np.ones(variants)
    while True:
        short = law.attained(high[:, None], rate / high[:, None]).both[:, 0] < attainment
        short &= high < _MOST
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, high * 2, high)
    while (high - low > 1).any():
        middle = np.ceil((low + high) / 2)
        good = law.attained(middle[:, None], rate / middle[:, None]).both[:, 0] >= attainment
        low, high = np.where(good, low, middle), np.where(good, middle, high)
        low = np.minimum(low, high - 1)
    return [int(count) if count < _MOST else None for count in high]


def _tiers(alone: Sequence[int], present: int) -> tuple[int, ...]:
    """From one below the least number in question to the greatest; all of them while these are few."""
    sizes = [*alone, *([present] if present else [])] or [1]
    low, high = max(min(sizes) - 1, 1), max(sizes)
    if high - low < _TIERS:
        return tuple(range(low, high + 1))
    ratio = (high / low) ** (1 / (_TIERS - 1))
    return tuple(sorted({round(low * ratio**place) for place in range(_TIERS)}))
