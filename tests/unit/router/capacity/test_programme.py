from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.demand import Demand, Objective, Shape
from router.capacity.joint import together
from router.capacity.need import Form, Need, Solution, Unsolved
from router.capacity.programme import solve, used
from router.capacity.sizing import size
from router.capacity.variants import Variant
from router.core import Role
from tests.support.planning import demand, variant

ROLES = (Role.BOTH, Role.PREFILL, Role.DECODE)


def need(variants: list[Variant], wanted: Demand, roles: tuple[Role, ...] = (Role.BOTH,), pool: str = "m") -> Need:
    objective = Objective()
    none = [0] * len(variants)
    return Need(
        pool=pool,
        sizings={role: size(role, variants, wanted, objective, none, wanted.rate) for role in roles},
        rate=wanted.rate,
    )


def solved(one: Need) -> Solution:
    (solution,) = solve([one], {})
    assert solution is not None
    return solution


def cheapest(one: Need) -> float:
    """Every combination of up to as many engines as each variant takes alone, by the same law."""
    best = float("inf")
    for form in one.forms:
        total = 0.0
        for role in form.roles:
            sizing = one.sizings[role]
            ranges = [range((alone or 6) + 1) for alone in sizing.alone]
            costs = [
                sum(n * v.cost_per_hour for n, v in zip(counts, sizing.variants, strict=True))
                for counts in product(*ranges)
                if sum(counts) and sizing.capacity(counts) >= one.rate
            ]
            total += min(costs, default=float("inf"))
        best = min(best, total)
    return best


costs = st.floats(1.0, 12.0)
speeds = st.floats(0.4, 2.0)
shapes = st.lists(
    st.builds(
        Shape,
        rate=st.floats(0.1, 1.0),
        new_tokens=st.floats(64, 6000),
        cached_tokens=st.floats(0, 4000),
        output_tokens=st.floats(16, 800),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(first=st.tuples(costs, speeds), second=st.tuples(costs, speeds), mix=shapes, rate=st.floats(0.5, 8.0))
def test_a_mix_of_two_variants_costs_at_most_three_percent_more_than_the_best_of_all_mixes(
    first: tuple[float, float], second: tuple[float, float], mix: list[Shape], rate: float
) -> None:
    variants = [
        variant("a", speed=first[1], cost_per_hour=first[0]),
        variant("b", speed=second[1], cost_per_hour=second[0]),
    ]
    one = need(variants, demand(rate, mix), ROLES)
    solution = solve([one], {})[0]
    assert solution is not None
    assert solution.cost <= 1.03 * cheapest(one) + 1e-6


def test_the_faster_engine_is_taken_only_while_its_speed_is_worth_its_price() -> None:
    fair = [variant("slow", speed=1.0, cost_per_hour=4.0), variant("fast", speed=2.0, cost_per_hour=6.0)]
    dear = [variant("slow", speed=1.0, cost_per_hour=4.0), variant("fast", speed=2.0, cost_per_hour=30.0)]
    assert solved(need(fair, demand(20.0))).counts.get((Role.BOTH, "slow"), 0) <= 1
    assert (Role.BOTH, "fast") not in solved(need(dear, demand(20.0))).counts


def test_a_quota_that_binds_moves_pools_to_another_variant() -> None:
    variants = [
        variant("a", speed=2.0, cost_per_hour=4.0, hardware="h200", accelerators=8),
        variant("b", speed=1.0, cost_per_hour=4.0, hardware="a100", accelerators=4),
    ]
    needs = [need(variants, demand(12.0), pool=f"m{i}") for i in range(2)]
    free = solve(needs, {})
    assert used("a100", needs, free) == 0
    quota = used("h200", needs, free) - 8
    bound = solve(needs, {"h200": quota})
    assert used("h200", needs, bound) <= quota
    assert used("a100", needs, bound) > 0
    assert all(
        one.sizings[Role.BOTH].capacity([s.counts.get((Role.BOTH, v.name), 0) for v in variants]) >= one.rate
        for one, s in zip(needs, bound, strict=True)
        if s is not None
    )


def test_a_quota_that_leaves_no_plan_is_said_so() -> None:
    variants = [variant("a", hardware="h200", accelerators=8)]
    with pytest.raises(Unsolved, match="h200"):
        solve([need(variants, demand(12.0))], {"h200": 8})


def test_bounds_that_allow_no_plan_give_none() -> None:
    assert solve([need([variant("a", most=1)], demand(40.0))], {}) == [None]


def test_disaggregation_is_chosen_where_prefills_would_disturb_decodes() -> None:
    long = Shape(rate=1.0, new_tokens=6000.0, output_tokens=150.0)
    solution = solve([need([variant()], demand(6.0, [long]), ROLES)], {})[0]
    assert solution is not None
    assert solution.form is Form.DISAGGREGATED
    prefill, decode = (solution.counts[role, "big"] for role in (Role.PREFILL, Role.DECODE))
    assert prefill > decode


def test_one_may_fail_where_that_is_asked_for() -> None:
    one = need([variant()], demand(1.0))
    assert solved(one).counts == {(Role.BOTH, "big"): 1}
    spare = Need(pool="m", sizings=one.sizings, rate=one.rate, survive_rate=1.0)
    assert solved(spare).counts == {(Role.BOTH, "big"): 2}


def test_a_start_costs_something_so_what_is_there_is_kept_among_equals() -> None:
    variants = [variant("a", cost_per_hour=4.0), variant("b", cost_per_hour=3.95)]
    one = need(variants, demand(10.0))
    here = Need(
        pool="m",
        sizings=one.sizings,
        rate=one.rate,
        present={(Role.BOTH, "a"): 2},
        start_cost={"a": 0.2, "b": 0.2},
        drain_cost={"a": 0.1, "b": 0.1},
    )
    assert solved(here).counts[Role.BOTH, "a"] >= 2


@settings(max_examples=12, deadline=None)
@given(
    rates=st.lists(st.floats(2.0, 14.0), min_size=5, max_size=8),
    speeds=st.tuples(st.floats(0.4, 1.6), st.floats(0.4, 1.6)),
    tight=st.floats(0.3, 0.95),
)
def test_many_pools_share_a_quota_for_at_most_three_percent_more_than_the_best(
    rates: list[float], speeds: tuple[float, float], tight: float
) -> None:
    variants = [
        variant("a", speed=1.8, cost_per_hour=4.0, hardware="h200", accelerators=4),
        variant("b", speed=speeds[0], cost_per_hour=3.5, hardware="a100", accelerators=2),
        variant("c", speed=speeds[1], cost_per_hour=4.5, hardware="l40s", accelerators=2),
    ]
    needs = [need(variants, demand(rate), pool=f"m{i}") for i, rate in enumerate(rates)]
    quota = {"h200": int(used("h200", needs, solve(needs, {})) * tight)}
    shares, best = solve(needs, quota), together(needs, quota)
    assert best is not None
    assert used("h200", needs, shares) <= quota["h200"]
    assert sum(s.cost for s in shares if s is not None) <= 1.03 * sum(s.cost for s in best)


def test_a_quota_that_many_pools_cannot_keep_is_said_so() -> None:
    one = need([variant("a", hardware="h200", accelerators=8)], demand(6.0))
    with pytest.raises(Unsolved, match="h200"):
        solve([one] * 25, {"h200": 100})
