"""Rationing: as many engines as bounds and quotas leave to pools that cannot have all they need. PURE.

Engine by engine, the one who has the least of what it needs comes first: the smallest share of a demand that is met,
over all pools and roles, becomes as large as it can. Nothing that is there goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from router.capacity.judgement import Judged
from router.capacity.need import Solution
from router.capacity.plan import Key, cost_of
from router.capacity.variants import Variant
from router.core import Role

_MOST_STEPS = 10_000


def rationed(pools: Sequence[Judged], left: Mapping[str, int]) -> list[Solution]:
    """`left`: hardware -> accelerators free beside what these pools have; what is not in it is there without end."""
    free = dict(left)
    counts: list[dict[Key, int]] = [
        {key: count for key, count in one.present.items() if count and key[0] in one.form.roles} for one in pools
    ]
    open_ = {(place, role) for place, one in enumerate(pools) for role in one.form.roles}
    for _ in range(_MOST_STEPS):
        short = {at: share for at in open_ if (share := _share(pools[at[0]], at[1], counts[at[0]])) < 1.0}
        if not short:
            break
        place, role = min(short, key=lambda at: (short[at], pools[at[0]].view.name, at[1].value))
        best = _best(pools[place], role, counts[place], free)
        if best is None:
            open_.discard((place, role))
            continue
        counts[place][role, best.name] = counts[place].get((role, best.name), 0) + 1
        if best.hardware in free:
            free[best.hardware] -= best.accelerators
    return [
        Solution(form=one.form, counts=its, cost=cost_of(one.view, its)) for one, its in zip(pools, counts, strict=True)
    ]


def _share(one: Judged, role: Role, counts: Mapping[Key, int]) -> float:
    """Of what the role needs, how much there is; without any engine less than with any."""
    its = one.counts(role, counts)
    if sum(its) < max(one.view.rules.least, 1):
        return -1.0 + sum(its) / max(one.view.rules.least, 1)
    sizing = one.sizings[role]
    met = sizing.capacity(its) / one.rate if one.rate > 0.0 else math.inf
    if one.view.rules.survive_failures and one.demand.rate > 0.0:
        met = min(met, (sizing.most(its) - sizing.strongest(its)) / one.demand.rate)
    return met


def _best(one: Judged, role: Role, counts: Mapping[Key, int], free: Mapping[str, int]) -> Variant | None:
    """What gives most for its money among what gives most of each scarce accelerator; None where nothing more fits."""
    sizing = one.sizings[role]
    total = sum(one.counts(role, counts))
    if total >= one.view.rules.most:
        return None
    tier = max((place for place, size in enumerate(sizing.tiers) if size <= total + 1), default=0)
    # What cannot meet the objective however many there are would not be felt beside what can.
    values = sizing.good[:, tier] if sizing.good[:, tier].any() else sizing.stable[:, tier]
    gains: dict[str, tuple[float, Variant]] = {}
    for index, variant in enumerate(one.view.variants):
        everywhere = sum(count for (_, name), count in counts.items() if name == variant.name)
        fits = free.get(variant.hardware or "", math.inf) >= variant.accelerators
        gain = float(values[index])
        if role not in variant.roles or everywhere >= variant.most or not fits or gain <= 0.0:
            continue
        scarce = variant.hardware if variant.hardware and variant.hardware in free else variant.name
        worth = gain / variant.accelerators
        if scarce not in gains or worth > gains[scarce][0]:
            gains[scarce] = (worth, variant)
    able = [(worth * v.accelerators / v.cost_per_hour, v) for worth, v in gains.values()]
    return max(able, key=lambda each: (each[0], each[1].name))[1] if able else None
