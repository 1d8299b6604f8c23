from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.demand import Objective, Shape
from router.capacity.plan import Action, Fleet, Plan, Record, Rules
from router.capacity.planner import Planner
from router.core import Role
from tests.support.planning import CHAT, Day, demand, variant, view

BIG = (Role.BOTH, "big")
SMALL = variant("small", speed=0.3, hardware="l40s", cost_per_hour=2.0, kv_tokens=100_000)
TALL = variant("tall", hardware="h100", accelerators=4, cost_per_hour=10.0)


def test_what_does_not_suffice_is_added_to_at_once_and_the_plan_says_why() -> None:
    plan = Planner().plan(0.0, [view(demand(6.0), {BIG: 1})])[0]
    assert plan.action is Action.OUT
    assert plan.desired[BIG] >= 3
    assert plan.binding == "tpot"
    assert "does not suffice" in plan.why
    assert "without one both engine of big" in plan.marginal
    assert plan.attainment is not None
    assert plan.attainment_now is not None
    assert plan.attainment > 0.99 > plan.attainment_now


def test_less_is_asked_for_only_after_less_has_sufficed_for_the_whole_window() -> None:
    planner = Planner()
    plans = [planner.plan(15.0 * step, [view(demand(2.0), {BIG: 6})])[0] for step in range(21)]
    assert {plan.action for plan in plans[:18]} == {Action.HOLD}
    assert plans[0].reason == "stabilizing"
    scaled = next(plan for plan in plans if plan.action is Action.IN)
    assert scaled.desired[BIG] < 6


def test_engines_that_start_are_counted_and_not_ordered_twice() -> None:
    first = Planner().plan(0.0, [view(demand(6.0), {BIG: 1})])[0]
    missing = first.desired[BIG] - 1
    fleet = Fleet(ready={BIG: 1}, starting={BIG: missing})
    second = Planner().plan(0.0, [view(demand(6.0), fleet=fleet)])[0]
    assert second.action is Action.HOLD
    assert second.desired == first.desired


def test_stale_knowledge_holds_what_is_there() -> None:
    plan = Planner().plan(0.0, [view(None, {BIG: 5})])[0]
    assert (plan.action, plan.reason, plan.desired) == (Action.HOLD, "stale", {BIG: 5})


def test_an_idle_pool_goes_to_zero_only_where_it_may() -> None:
    quiet = demand(5.0).scaled(0.0)
    may = view(quiet, {BIG: 1}, rules=Rules(least=0), idle_s=700.0)
    must = view(quiet, {BIG: 1}, idle_s=700.0)
    soon = view(quiet, {BIG: 1}, rules=Rules(least=0), idle_s=100.0)
    assert [Planner().plan(0.0, [each])[0].action for each in (may, must, soon)] == [
        Action.ZERO,
        Action.HOLD,
        Action.HOLD,
    ]


def test_a_pool_of_which_no_request_is_known_yet_is_not_taken_for_idle() -> None:
    quiet = demand(5.0).scaled(0.0)
    unseen = view(quiet, {BIG: 1}, rules=Rules(least=0), idle_s=None)
    assert Planner().plan(0.0, [unseen])[0].action is Action.HOLD


@pytest.mark.parametrize("interval_s", [5.05, 15.4, 31.0])
def test_less_is_asked_for_after_the_window_whatever_the_time_between_two_plans(interval_s: float) -> None:
    planner, at, said = Planner(), 0.0, []
    rules = Rules(stabilization_s=45.0)
    while at < 45.0 + 2 * interval_s:
        said.append((at, planner.plan(at, [view(demand(2.0), {BIG: 6}, rules=rules)])[0]))
        at += interval_s
    first = next(at for at, plan in said if plan.action is Action.IN)
    assert 45.0 <= first < 45.0 + interval_s


def test_a_pool_that_is_asked_now_and_then_shrinks_after_the_window_and_says_how_long_that_is() -> None:
    planner, rules = Planner(), Rules(stabilization_s=60.0)
    actions = []
    for step in range(8):
        asked = demand(0.05 if step % 2 else 0.0)
        plan = planner.plan(10.0 * step, [view(asked, {BIG: 4}, rules=rules, idle_s=10.0 * ((step + 1) % 2))])[0]
        actions.append(plan.action)
        if step == 1:
            assert "for 10 s, and goes after 60 s, in 50 s" in plan.why
        if step == 0:
            assert plan.why == "no request for 10 s: the least engines are enough after 60 s, in 50 s"
    assert Action.IN in actions


def test_a_time_of_which_nothing_is_known_does_not_count_as_one_in_which_less_was_enough() -> None:
    planner, rules = Planner(), Rules(stabilization_s=60.0)
    given = [demand(2.0), None, demand(2.0)]
    plans = [planner.plan(50.0 * step, [view(each, {BIG: 6}, rules=rules)])[0] for step, each in enumerate(given)]
    assert plans[-1].reason == "stabilizing"


def test_a_quiet_pool_keeps_its_least_engines_the_cheapest_ones() -> None:
    variants = [variant("dear", cost_per_hour=9.0), variant("cheap", cost_per_hour=2.0)]
    ready = {(Role.PREFILL, "dear"): 2, (Role.PREFILL, "cheap"): 2, (Role.DECODE, "dear"): 3}
    rules = Rules(least=1, aggregated=False, disaggregated=True, stabilization_s=60.0)

    def plan(idle_s: float | None) -> Plan:
        still = view(demand(5.0).scaled(0.0), ready, variants=variants, rules=rules, idle_s=idle_s)
        return Planner().plan(0.0, [still])[0]

    assert [plan(idle_s).action for idle_s in (None, 50.0)] == [Action.HOLD, Action.HOLD]
    later = plan(70.0)
    assert (later.action, later.reason) == (Action.IN, "quiet")
    assert later.desired == {(Role.PREFILL, "cheap"): 1, (Role.DECODE, "dear"): 1}


def test_a_pool_nobody_asked_for_long_enough_is_idle_whatever_the_forecast_remembers() -> None:
    rules = Rules(least=0, idle_s=60.0)
    still = view(demand(0.5), {BIG: 1}, rules=rules, idle_s=61.0)
    held = view(demand(0.5, held=1), {BIG: 1}, rules=rules, idle_s=61.0)
    assert [Planner().plan(0.0, [each])[0].action for each in (still, held)] == [Action.ZERO, Action.HOLD]


def test_held_requests_wake_an_empty_pool_with_the_cheapest_engine_and_only_once() -> None:
    variants = [variant("dear", cost_per_hour=9.0), variant("cheap", cost_per_hour=2.0)]
    empty = demand(5.0, held=3).scaled(0.0)
    plan = Planner().plan(0.0, [view(empty, variants=variants, rules=Rules(least=0))])[0]
    assert (plan.action, plan.desired) == (Action.WAKE, {(Role.BOTH, "cheap"): 1})
    waiting = view(empty, variants=variants, rules=Rules(least=0), fleet=Fleet(starting={(Role.BOTH, "cheap"): 1}))
    assert Planner().plan(0.0, [waiting])[0].action is Action.HOLD


def test_both_roles_of_a_disaggregated_pool_are_woken() -> None:
    rules = Rules(least=0, aggregated=False, disaggregated=True)
    plan = Planner().plan(0.0, [view(demand(5.0, held=1).scaled(0.0), rules=rules)])[0]
    assert plan.desired == {(Role.PREFILL, "big"): 1, (Role.DECODE, "big"): 1}


def test_a_cheaper_variant_is_started_before_the_dear_one_goes() -> None:
    variants = [variant("dear", cost_per_hour=8.0), variant("cheap", cost_per_hour=3.0)]
    planner, ready = Planner(), {(Role.BOTH, "dear"): 4}
    actions = []
    for step in range(15):
        plan = planner.plan(60.0 * step, [view(demand(6.0), ready, variants=variants)])[0]
        if plan.action is not Action.HOLD:
            actions.append(plan.action)
        ready = dict(plan.desired)
    assert actions == [Action.MIXED, Action.IN]
    assert set(ready) == {(Role.BOTH, "cheap")}


def test_the_most_that_is_allowed_is_taken_when_nothing_suffices() -> None:
    plan = Planner().plan(0.0, [view(demand(50.0), {BIG: 1}, rules=Rules(most=3))])[0]
    assert plan.desired == {BIG: 3}
    assert plan.binding == "maximum"


def test_a_quota_serves_first_who_has_too_little() -> None:
    variants = [variant("big", hardware="h100", accelerators=4)]
    views = [
        view(demand(6.0), {BIG: 4}, variants=variants, name="rich"),
        view(demand(6.0), {BIG: 1}, variants=variants, name="poor"),
    ]
    plans = Planner().plan(0.0, views, {"h100": 28})
    assert sum(plan.total for plan in plans) * 4 <= 28
    assert plans[1].total > 1


def test_batch_work_makes_room_only_beyond_what_valleys_hold() -> None:
    batch = [CHAT]
    without = Planner().plan(0.0, [view(demand(6.0), {BIG: 1})])[0]
    little = Planner().plan(0.0, [view(demand(6.0, batch=batch), {BIG: 1})])[0]
    much = Planner().plan(0.0, [view(demand(6.0, batch=batch * 12), {BIG: 1})])[0]
    assert without.total == little.total < much.total


def test_a_backlog_asks_for_more_than_the_rate_does() -> None:
    plain = Planner().plan(0.0, [view(demand(6.0), {BIG: 1})])[0]
    behind = Planner().plan(0.0, [view(demand(6.0, backlog_tokens=600_000.0), {BIG: 1})])[0]
    assert behind.total > plain.total


def test_alternatives_are_named_with_their_price() -> None:
    variants = [variant("dear", cost_per_hour=9.0), variant("cheap", cost_per_hour=2.0)]
    plan = Planner().plan(0.0, [view(demand(6.0), {}, variants=variants, rules=Rules(disaggregated=True))])[0]
    prices = [each.cost_per_hour for each in plan.alternatives if each.cost_per_hour is not None]
    assert len(plan.alternatives) == 3
    assert prices == sorted(prices)
    assert [each.why for each in plan.alternatives] == ["no cheaper", *["dearer by 21 an hour"] * 2]


def test_what_is_chosen_is_not_among_the_rejected_and_what_a_quota_forbids_is_marked() -> None:
    plan = Planner().plan(0.0, [view(demand(0.1), {(Role.BOTH, "tall"): 1}, variants=[TALL, SMALL])], {"l40s": 0})[0]
    assert {each.what: each.why for each in plan.alternatives} == {
        "aggregated, 2 both of small": "over the quota, it takes 2 l40s of 0 that may be had"
    }


def test_an_engine_that_chance_would_not_miss_is_said_to_be_there_for_what_binds() -> None:
    plan = Planner().plan(0.0, [view(demand(0.01), {BIG: 3}, rules=Rules(least=3))])[0]
    assert "as many requests would meet the objective, 100.0%" in plan.marginal
    assert "minimum keeps it" in plan.marginal


def test_steady_load_with_noise_is_left_alone() -> None:
    day = Day(lambda _: 6.0)
    day.live(3600.0, every=120.0)
    assert day.changes <= 2


@pytest.mark.parametrize("rate", [3.6, 3.8, 4.0, 4.2])
def test_a_demand_that_swings_within_its_error_is_met_by_the_same_engines(rate: float) -> None:
    planner, ready, changes = Planner(), {BIG: 1}, 0
    for step in range(100):
        swing = 0.15 if step % 10 >= 8 else -0.15
        plan = planner.plan(60.0 * step, [view(demand(rate * (1.0 + swing), error=0.08, chance=0.08), ready)])[0]
        changes += plan.desired != plan.present
        ready = dict(plan.desired)
    # To what the trough needs, and to what the crest does.
    assert changes <= 2


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.3, 4.0, 6.0, 7.5])
def test_six_hours_of_steady_load_take_at_most_two_actions_after_the_first_minutes(rate: float) -> None:
    day = Day(lambda _: rate)
    day.live(600.0)
    before = day.changes
    day.live(6 * 3600.0, start=600.0)
    assert day.changes - before <= 2


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(rate=st.floats(0.8, 9.0), speed=st.floats(0.4, 2.0), worth=st.floats(0.8, 1.25), seed=st.integers(1, 1000))
def test_two_variants_of_about_the_same_worth_are_not_exchanged_for_each_other_on_steady_load(
    rate: float, speed: float, worth: float, seed: int
) -> None:
    variants = [variant("a", cost_per_hour=4.0), variant("b", speed=speed, cost_per_hour=4.0 * speed * worth)]
    day = Day(lambda _: rate, variants=variants, seed=seed)
    day.live(900.0, every=60.0)
    before = day.changes
    day.live(6 * 3600.0, every=60.0, start=900.0)
    assert day.changes - before <= 2


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.1, 1.3, 2.2, 4.0, 5.1, 6.0, 7.5])
def test_a_budget_of_misses_is_kept_on_steady_load_without_trying_it_again_and_again(rate: float) -> None:
    day = Day(lambda _: rate, rules=Rules(budget_s=3600.0))
    day.live(600.0)
    before = day.changes
    day.live(6 * 3600.0, start=600.0)
    assert day.changes - before <= 2
    assert day.missed <= 0.01 * day.answered


def test_a_day_on_a_budget_takes_fewer_engines_and_attains_what_was_asked_for() -> None:
    def rate(at: float) -> float:
        return 5.0 + 4.0 * math.sin(2 * math.pi * at / 7200.0)

    moment, budget = (Day(rate, rules=Rules(budget_s=budget_s)) for budget_s in (1e-3, 3600.0))
    for day in (moment, budget):
        day.live(7200.0, every=60.0)
        assert day.missed <= 0.01 * day.answered
    taken = [sum(plan.total for plan in day.plans) for day in (moment, budget)]
    assert taken[1] < taken[0]


def test_room_for_bursts_is_not_spent() -> None:
    clean = Record(answered=9000, lately=700)
    rules = Rules(budget_s=3600.0, burst=3.0)
    plan = Planner().plan(0.0, [view(demand(3.0), {BIG: 2}, rules=rules, record=clean)])[0]
    assert plan.target == rules.objective.attainment
    assert plan.attained == 1.0


@pytest.mark.parametrize(
    ("objective", "binding"), [(Objective(ttft_s=0.05), "ttft"), (Objective(tpot_s=0.001), "tpot")]
)
def test_for_an_objective_out_of_reach_no_more_is_planned_than_keeps_queues_from_growing(
    objective: Objective, binding: str
) -> None:
    def plan(its: Objective, rate: float) -> Plan:
        return Planner().plan(0.0, [view(demand(rate), {BIG: 1}, rules=Rules(objective=its))])[0]

    for rate in (5.0, 40.0):
        out_of_reach = plan(objective, rate)
        assert 1 < out_of_reach.total <= plan(Objective(), rate).total
        assert f"({binding} binds)" in out_of_reach.why
        assert out_of_reach.binding == "stability"
        assert not out_of_reach.alternatives


def test_engines_that_would_stand_idle_and_buy_the_objective_for_few_are_not_planned() -> None:
    tight = Rules(objective=Objective(tpot_s=0.0122))
    plans = [Planner().plan(0.0, [view(demand(rate), {BIG: 1}, rules=tight)])[0] for rate in (5.0, 50.0)]
    assert plans[0].binding == "maximum"
    assert plans[0].total == tight.most
    assert "any number of engines" in plans[1].why
    assert plans[1].total < tight.most


def test_a_load_too_great_for_the_most_engines_gets_all_of_them() -> None:
    plan = Planner().plan(0.0, [view(demand(60.0), {BIG: 1}, rules=Rules(most=8))])[0]
    assert (plan.total, plan.binding) == (8, "maximum")


def test_what_is_missing_is_added_to_what_is_there_and_nothing_is_exchanged_in_need() -> None:
    variants = [variant("dear", cost_per_hour=8.0), variant("cheap", cost_per_hour=3.0)]
    plan = Planner().plan(0.0, [view(demand(6.0), {(Role.BOTH, "dear"): 1}, variants=variants)])[0]
    alone = Planner().plan(0.0, [view(demand(6.0), {}, variants=variants)])[0]
    assert plan.desired[Role.BOTH, "dear"] == 1
    assert plan.desired[Role.BOTH, "cheap"] < alone.desired[Role.BOTH, "cheap"]


@pytest.mark.parametrize(("price", "exchanged"), [(3.8, False), (2.0, True)])
def test_warm_engines_are_exchanged_only_for_what_pays_for_the_start_and_the_lost_prefixes(
    price: float, exchanged: bool
) -> None:
    variants = [variant("warm", cost_per_hour=4.0), variant("other", cost_per_hour=price)]
    shapes = [Shape(rate=1.0, new_tokens=500.0, cached_tokens=6000.0, output_tokens=250.0)]
    planner, ready = Planner(), {(Role.BOTH, "warm"): 3}
    for step in range(30):
        ready = dict(planner.plan(60.0 * step, [view(demand(6.0, shapes), ready, variants=variants)])[0].desired)
    assert ((Role.BOTH, "other") in ready) is exchanged


def test_a_day_is_followed_up_and_down_without_flapping() -> None:
    day = Day(lambda at: 5.0 + 4.0 * math.sin(2 * math.pi * at / 5400.0))
    day.live(5400.0, every=90.0)
    totals = [plan.total for plan in day.plans]
    assert max(totals) > 1.6 * min(totals[8:])
    turns = [later - earlier for earlier, later in itertools.pairwise(totals) if later != earlier]
    assert sum((a > 0) != (b > 0) for a, b in itertools.pairwise(turns)) <= 4


@pytest.mark.parametrize("rate", [5.0, 8.0, 30.0])
def test_a_quota_that_binds_gives_all_that_it_has_room_for_however_great_the_load(rate: float) -> None:
    its = view(demand(rate), {(Role.BOTH, "small"): 1}, variants=[TALL, SMALL])
    plan = Planner().plan(0.0, [its], {"l40s": 2, "h100": 6})[0]
    assert (plan.action, plan.binding) == (Action.OUT, "quota")
    assert plan.desired == {(Role.BOTH, "small"): 2, (Role.BOTH, "tall"): 1}
    assert plan.rate > rate
    assert plan.attainment is not None
    there = view(demand(rate), dict(plan.desired), variants=[TALL, SMALL])
    full = Planner().plan(0.0, [there], {"l40s": 2, "h100": 6})[0]
    assert (full.action, full.binding, full.desired) == (Action.HOLD, "quota", plan.desired)


def test_several_pools_with_too_little_share_what_is_left_and_who_has_enough_keeps_it() -> None:
    variants = [variant("big", hardware="h100", accelerators=4)]
    rich = view(demand(2.0), {BIG: 2}, variants=variants, name="rich")
    poor = [view(demand(12.0), {BIG: 1}, variants=variants, name=name) for name in ("a", "b")]
    plans = Planner().plan(0.0, [rich, *poor], {"h100": 4 * 8})
    assert [plan.total for plan in plans] == [2, 3, 3]
    assert [plan.binding for plan in plans[1:]] == ["quota", "quota"]


def test_what_a_pool_keeps_without_a_plan_leaves_no_room_in_the_quota() -> None:
    variants = [variant("big", hardware="h100", accelerators=4)]
    # It has enough, but no room for what a scale-in would have to leave.
    tight = view(demand(3.6), {BIG: 2}, variants=variants, name="tight", rules=Rules(margin=1.0))
    poor = view(demand(12.0), {BIG: 1}, variants=variants, name="poor")
    kept, short = Planner().plan(0.0, [tight, poor], {"h100": 12})
    assert (kept.action, kept.reason, kept.total) == (Action.HOLD, "quota", 2)
    assert (short.action, short.binding, short.total) == (Action.HOLD, "quota", 1)
