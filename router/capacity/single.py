"""Single: the best plan of a pool that knows one variant, in closed form. PURE.

With one variant a role's constraints (`router.capacity.programme`) bound one number from below each, so the least that
all of them allow is the answer, or the present number where draining would cost more than it saves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from router.capacity.sizing import Sizing
from router.core import Role

if TYPE_CHECKING:
    from router.capacity.programme import Form, Need

_EPSILON = 1e-9


def least(need: Need, form: Form) -> dict[Role, int] | None:
    """Engines of each role of the form; None where the bounds allow no plan. `need` has one variant."""
    variant = need.variants[0]
    counts: dict[Role, int] = {}
    for role in form.roles:
        number = _of_role(need, need.sizings[role]) if role in variant.roles else None
        if number is None:
            return None
        counts[role] = number
    total = sum(counts.values())
    if total > variant.most:
        return None
    if total < variant.least:
        # Of equal engines any role may have them; what is more than enough is of use where tokens are made.
        last = form.roles[-1]
        counts[last] += variant.least - total
        if counts[last] > need.most:
            return None
    return counts


def changes(need: Need, form: Form, counts: dict[Role, int]) -> float:
    """Money an hour of the engines, and of what it takes to get there."""
    variant = need.variants[0]
    start, drain = need.start_cost.get(variant.name, 0.0), need.drain_cost.get(variant.name, 0.0)
    total = need.switch_cost if need.form not in (None, form) else 0.0
    for role, count in counts.items():
        more = count - need.present.get((role, variant.name), 0)
        total += variant.cost_per_hour * count + (start * more if more > 0 else -drain * more)
    return total


def _of_role(need: Need, sizing: Sizing) -> int | None:
    variant, role = need.variants[0], sizing.role
    numbers = [
        max(size, math.ceil(need.rate / good - _EPSILON))
        for size, good in zip(sizing.tiers, (float(value) for value in sizing.good[0]), strict=True)
        if good > 0.0
    ]
    if not numbers:
        return None
    number = max(min(numbers), need.least)
    if need.total_rate > 0.0:
        number = max(number, math.ceil(need.total_rate / need.whole[role][0] - _EPSILON))
    if need.survive_rate > 0.0:
        number = max(number, 1 + math.ceil(need.survive_rate / float(sizing.stable[0, 0]) - _EPSILON))
    present = need.present.get((role, variant.name), 0)
    most = min(variant.most, need.most)
    if need.drain_cost.get(variant.name, 0.0) > variant.cost_per_hour:
        number = max(number, min(present, most))
    return number if number <= most else None
