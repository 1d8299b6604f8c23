"""The programme: how many engines of which variant in which role, at the least cost. PURE.

Of each pool one form is chosen: aggregated (role both) or disaggregated (roles prefill and decode). Of a role, with
x engines by variant, and y the chosen tier of their number N (`router.capacity.sizing`):

    sum x >= N y                         there are as many as the tier says
    sum good(tier) x >= rate y           they meet the objective
    sum stable x >= rate + batch         the batch work finds room, which waits while others do not
    sum stable x - stable of any one >= rate     one may fail, where that is asked for

Cost is money an hour, plus what starting and draining cost once, spread over the time that a change is expected to
last. Pools are solved one by one (`router.capacity.alone`), and only when a quota of accelerators would be broken
together: a few of them by HiGHS (`router.capacity.joint`), many by tolls (`router.capacity.shares`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from router.capacity.alone import Priced, alone
from router.capacity.joint import together
from router.capacity.need import Need, Solution, Unsolved
from router.capacity.shares import shared

_MOST_EXACT = 4
"""Pools that share out a quota in one integer programme; more of them would take longer than a plan may."""


def solve(needs: Sequence[Need], quotas: Mapping[str, int]) -> list[Solution | None]:
    """The best plan of each pool, None where its bounds allow none. What is to stay goes where it would leave no plan.
    Raises Unsolved when the quotas leave no plan for all together, or none is found in the steps that are allowed.
    """
    found = [alone(need) for need in needs]
    solutions = [None if each is None else each.solution for each in found]
    over = [name for name, quota in quotas.items() if used(name, needs, solutions) > quota]
    if not over:
        return solutions
    places = [place for place, each in enumerate(found) if each is not None]
    sharing = [needs[place] for place in places]
    joint = _many(sharing, [each for each in found if each is not None], over, quotas)
    if joint is None:
        joint = together(sharing, quotas) or together([_free(need) for need in sharing], quotas)
    if joint is None:
        raise Unsolved(f"the quota of {', '.join(over)} does not suffice for what the pools need")
    for place, solution in zip(places, joint, strict=True):
        solutions[place] = solution
    return solutions


def _many(
    needs: Sequence[Need], first: Sequence[Priced], over: Sequence[str], quotas: Mapping[str, int]
) -> list[Solution] | None:
    """None for few pools, and where tolls on one hardware after the other do not lead to what all quotas allow."""
    if len(needs) <= _MOST_EXACT:
        return None
    plans = list(first)
    for hardware in over:
        shares = shared(needs, plans, hardware, quotas[hardware])
        if shares is None:
            return None
        plans = shares
    solutions = [plan.solution for plan in plans]
    return None if any(used(name, needs, solutions) > quota for name, quota in quotas.items()) else solutions


def _free(need: Need) -> Need:
    return msgspec.structs.replace(need, floor={})


def used(hardware: str, needs: Sequence[Need], solutions: Sequence[Solution | None]) -> int:
    """Accelerators of that kind in the solutions."""
    total = 0
    for need, solution in zip(needs, solutions, strict=True):
        size = {variant.name: variant.accelerators for variant in need.variants if variant.hardware == hardware}
        if solution is not None:
            total += sum(size.get(name, 0) * count for (_, name), count in solution.counts.items())
    return total
