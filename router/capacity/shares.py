"""Shares: who of many pools gives up how much of a hardware whose quota all of them want. PURE.

Each pool is planned again with fewer engines of that hardware in each role, and under tolls on it; what comes out are a
few plans of each, from the most accelerators to the fewest. Which of them to take so that all together are within the
quota at the least cost is found exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from router.capacity.alone import Priced, alone
from router.capacity.need import Form, Need

_CAPS = 5
"""Numbers of engines in a role that are tried below what a pool would have."""
_TOLLS = (0.1, 0.5, 1e4)
"""Times the hardware's own price for an accelerator."""


class _Choice(NamedTuple):
    taken: int
    """Accelerators."""
    priced: Priced


def shared(needs: Sequence[Need], first: Sequence[Priced], hardware: str, quota: int) -> list[Priced] | None:
    """Plans whose accelerators of that kind are within the quota; `first`: without one. None: none were found."""
    choices = [_choices(need, priced, hardware) for need, priced in zip(needs, first, strict=True)]
    unit = math.gcd(*(option.taken for options in choices for option in options)) or 1
    # By units taken: the least cost of the pools so far, and the choices that led there.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for options in choices:
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for units, (cost, chosen) in best.items():
            for place, option in enumerate(options):
                total, sum_ = units + option.taken // unit, cost + option.priced.cost
                if total * unit <= quota and (total not in further or sum_ < further[total][0]):
                    further[total] = (sum_, (*chosen, place))
        best = further
    if not best:
        return None
    _, chosen = min(best.values())
    return [options[place].priced for options, place in zip(choices, chosen, strict=True)]


def _choices(need: Need, first: Priced, hardware: str) -> list[_Choice]:
    """The cheapest plan of each number of accelerators that was found."""
    found: dict[int, Priced] = {}

    def add(priced: Priced | None) -> None:
        if priced is not None:
            number = taken(hardware, need, priced)
            if number not in found or priced.cost < found[number].cost:
                found[number] = priced

    add(first)
    own = [variant for variant in need.variants if variant.hardware == hardware]
    engines = taken(hardware, need, first) // min((variant.accelerators for variant in own), default=1)
    if engines:
        for cap in sorted({engines * part // _CAPS for part in range(_CAPS)}):
            add(alone(_capped(need, hardware, cap)))
    if engines and (len(own) > 1 or Form.DISAGGREGATED in need.forms):
        price = min(variant.cost_per_hour / variant.accelerators for variant in own)
        for toll in _TOLLS:
            add(alone(need, {hardware: toll * price}))
    return [_Choice(number, found[number]) for number in sorted(found)]


def _capped(need: Need, hardware: str, cap: int) -> Need:
    variants = tuple(
        msgspec.structs.replace(v, least=min(v.least, cap), most=min(v.most, cap)) if v.hardware == hardware else v
        for v in need.variants
    )
    sizings = {role: sizing._replace(variants=variants) for role, sizing in need.sizings.items()}
    return msgspec.structs.replace(need, sizings=sizings)


def taken(hardware: str, need: Need, priced: Priced) -> int:
    """Accelerators of that kind in a pool's plan."""
    size = {variant.name: variant.accelerators for variant in need.variants if variant.hardware == hardware}
    return sum(size.get(name, 0) * count for (_, name), count in priced.solution.counts.items())
