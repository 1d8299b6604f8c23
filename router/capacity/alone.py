"""Alone: the best plan of one pool, role by role (`router.capacity.covering`), with dear or scarce hardware. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from router.capacity.covering import Kind, Wanted, cheapest
from router.capacity.joint import together
from router.capacity.need import MOST_DRAIN, Form, Need, Solution
from router.capacity.sizing import Sizing
from router.core import Role

Toll = Mapping[str, float]
"""Hardware -> money an hour that each accelerator of it costs besides."""
_NONE: Toll = {}


class Priced(NamedTuple):
    solution: Solution
    cost: float
    """Money an hour of the engines and of what it takes to get there, without the toll."""


def alone(need: Need, toll: Toll = _NONE) -> Priced | None:
    """None where the bounds allow no plan. What is to stay goes where it would leave none."""
    return _alone(need, toll) or _alone(msgspec.structs.replace(need, floor={}), toll)


def _alone(need: Need, toll: Toll) -> Priced | None:
    found: list[tuple[float, Priced]] = []
    for form in need.forms:
        covered = _covered(need, form, toll)
        if covered is None:
            continue
        cost, solution = covered
        if not _within(need, solution):
            # Bounds of a variant over both roles tie them together.
            joint = together([need], {})
            return None if joint is None else Priced(joint[0], joint[0].cost)
        found.append((cost, Priced(solution, cost - _paid(need, solution, toll))))
    return min(found, key=lambda each: each[0])[1] if found else None


def _covered(need: Need, form: Form, toll: Toll) -> tuple[float, Solution] | None:
    """Role by role, with the cost that changes and toll are part of."""
    counts: dict[tuple[Role, str], int] = {}
    total = need.switch_cost if need.form not in (None, form) else 0.0
    for role in form.roles:
        sizing = need.sizings[role]
        able = [index for index, variant in enumerate(sizing.variants) if role in variant.roles]
        wanted = Wanted(need.rate, need.total_rate, need.survive_rate, need.least, need.most)
        cover = cheapest([_kind(need, sizing, index, form, toll) for index in able], sizing.tiers, wanted)
        if cover is None:
            return None
        total += cover.cost
        for index, count in zip(able, cover.counts, strict=True):
            if count:
                counts[role, sizing.variants[index].name] = count
    price = {variant.name: variant.cost_per_hour for variant in need.variants}
    return total, Solution(form=form, counts=counts, cost=sum(price[name] * n for (_, name), n in counts.items()))


def _kind(need: Need, sizing: Sizing, index: int, form: Form, toll: Toll) -> Kind:
    variant, role = sizing.variants[index], sizing.role
    stays = need.floor.get((role, variant.name), 0)
    return Kind(
        price=variant.cost_per_hour + toll.get(variant.hardware or "", 0.0) * variant.accelerators,
        start=need.start_cost.get(variant.name, 0.0),
        drain=min(need.drain_cost.get(variant.name, 0.0), MOST_DRAIN * variant.cost_per_hour),
        present=need.present.get((role, variant.name), 0),
        low=max(stays, variant.least if len(form.roles) == 1 else 0),
        high=min(variant.most, need.most),
        good=[float(value) for value in sizing.good[index]],
        stable=float(sizing.stable[index, 0]),
        whole=need.whole[role][index] if need.total_rate > 0.0 else 0.0,
    )


def _within(need: Need, solution: Solution) -> bool:
    for variant in need.variants:
        total = sum(count for (_, name), count in solution.counts.items() if name == variant.name)
        if not variant.least <= total <= variant.most:
            return False
    return True


def _paid(need: Need, solution: Solution, toll: Toll) -> float:
    """Toll."""
    each = {v.name: toll.get(v.hardware or "", 0.0) * v.accelerators for v in need.variants}
    return sum(each[name] * count for (_, name), count in solution.counts.items())
