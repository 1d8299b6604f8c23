"""What is published while others, who are slow, carry it out."""

from __future__ import annotations

from router.capacity.demand import Demand
from router.capacity.plan import Action, Key, Plan, PoolView, Rules
from router.capacity.planner import Planner
from router.core import Role
from tests.support.planning import demand, variant, view

BIG = (Role.BOTH, "big")
RULES = Rules(stabilization_s=60.0)


def its(asked: Demand, present: dict[Key, int], **fields: object) -> PoolView:
    return view(asked, present, **{"rules": RULES, **fields})


def said(planner: Planner, at: float, asked: Demand, present: dict[Key, int], **fields: object) -> Plan:
    return planner.plan(at, [its(asked, present, **fields)])[0]


def test_more_stands_for_the_window_after_it_was_last_needed_while_nobody_acts() -> None:
    planner = Planner()
    first = said(planner, 0.0, demand(6.0), {BIG: 1})
    later = [said(planner, at, demand(1.0), {BIG: 1}) for at in (15.0, 30.0, 59.0)]
    assert {plan.desired[BIG] for plan in later} == {first.desired[BIG]}
    assert {(plan.action, plan.reason) for plan in later} == {(Action.OUT, "standing")}
    assert said(planner, 61.0, demand(1.0), {BIG: 1}).desired == {BIG: 1}


def test_the_number_does_not_follow_chance_down_while_more_is_needed() -> None:
    planner = Planner()
    totals = [said(planner, 15.0 * step, demand(rate), {BIG: 1}).total for step, rate in enumerate((6.0, 9.0, 6.0))]
    assert totals[0] < totals[1] == totals[2]


def test_what_stands_is_no_more_once_it_is_there() -> None:
    planner = Planner()
    wanted = said(planner, 0.0, demand(6.0), {BIG: 1}).total
    assert said(planner, 15.0, demand(5.0), {BIG: wanted}).action is Action.HOLD


def test_more_stands_when_the_traffic_ends() -> None:
    planner = Planner()
    first = said(planner, 0.0, demand(6.0), {BIG: 1})
    assert said(planner, 30.0, demand(0.0), {BIG: 1}, idle_s=20.0).desired == first.desired
    assert said(planner, 70.0, demand(0.0), {BIG: 1}, idle_s=50.0).desired == {BIG: 1}


def fewer(planner: Planner) -> Plan:
    return [said(planner, 15.0 * step, demand(2.0), {BIG: 6}) for step in range(5)][-1]


def test_fewer_stands_until_they_are_gone() -> None:
    planner = Planner()
    first = fewer(planner)
    assert first.action is Action.IN
    for at, present in ((75.0, 6), (90.0, 5), (105.0, 4)):
        plan = said(planner, at, demand(2.0), {BIG: present})
        assert (plan.action, plan.desired) == (Action.IN, first.desired)
    assert said(planner, 120.0, demand(2.0), dict(first.desired)).action is Action.HOLD


def test_fewer_stands_when_the_traffic_ends_and_not_when_it_grows() -> None:
    planner = Planner()
    first = fewer(planner)
    assert said(planner, 75.0, demand(0.0), {BIG: 6}, idle_s=5.0).desired == first.desired
    assert said(planner, 90.0, demand(12.0), {BIG: 6}).total >= 6


def test_one_variant_for_another_stands_until_it_is_there() -> None:
    variants = [variant("dear", cost_per_hour=8.0), variant("cheap", cost_per_hour=3.0)]
    planner, dear = Planner(), {(Role.BOTH, "dear"): 4}
    plans = [said(planner, 15.0 * step, demand(6.0 - step % 2), dear, variants=variants) for step in range(9)]
    mixed = [plan.desired for plan in plans if plan.action is not Action.HOLD]
    assert len(mixed) >= 3
    assert all(one.items() == mixed[0].items() for one in mixed)


def test_an_engine_that_was_woken_for_requests_which_left_is_not_called_off_at_once() -> None:
    planner, rules = Planner(), Rules(least=0, stabilization_s=60.0)
    held = said(planner, 0.0, demand(0.0, held=2), {}, rules=rules)
    assert (held.action, held.total) == (Action.WAKE, 1)
    assert said(planner, 30.0, demand(0.0), {}, rules=rules).total == 1
    assert said(planner, 61.0, demand(0.0), {}, rules=rules).total == 0


def test_a_quota_is_not_exceeded_by_what_stands() -> None:
    variants = [variant("big", hardware="h100", accelerators=4)]
    planner, quotas = Planner(), {"h100": 20}

    def both(at: float, first: float, second: float) -> int:
        rates = {"a": first, "b": second}
        views = [its(demand(rate), {BIG: 1}, variants=variants, name=name) for name, rate in rates.items()]
        return sum(plan.total for plan in planner.plan(at, views, quotas))

    assert both(0.0, 9.0, 1.0) <= 5
    assert both(15.0, 1.0, 9.0) <= 5
