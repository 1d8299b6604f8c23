from __future__ import annotations

from loadtest.bench.planning_bench import POOLS, pools, quota, timed
from router.capacity.plan import Action, Rules
from router.capacity.planner import Planner


def test_what_is_measured_is_a_cycle_in_which_some_pools_suffice_and_a_quota_binds() -> None:
    views = pools(Rules())
    plans = Planner().plan(0.0, views)
    assert len(plans) == POOLS
    assert {plan.action for plan in plans} >= {Action.OUT, Action.HOLD}
    limits = quota(views)
    bound = Planner().plan(0.0, views, limits)
    assert any(plan.binding == "quota" or plan.desired != free.desired for plan, free in zip(bound, plans, strict=True))
    assert len(timed(views[:2], {}, cycles=1)) == 1
