"""The cheapest numbers, as by trying all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypedDict, Unpack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.covering import Kind, Wanted, cheapest
from router.capacity.demand import Demand, Objective
from router.capacity.joint import together
from router.capacity.need import Counts, Form, Need
from router.capacity.programme import solve
from router.capacity.sizing import size
from router.core import Role
from tests.support.planning import demand, variant

ROLES = (Role.BOTH, Role.PREFILL, Role.DECODE)
TIERS = (1, 3, 5)
MOST = 5

kinds = st.builds(
    lambda price, change, present, low, span, good, more: Kind(
        price=price,
        start=change * price,
        drain=change * price,
        present=present,
        low=low,
        high=min(low + span, MOST),
        good=[good, good * 1.1, good * 1.3],
        stable=good * more,
        whole=good * more * 0.8,
    ),
    st.floats(1.0, 9.0),
    st.floats(0.0, 0.8),
    st.integers(0, 4),
    st.integers(0, 2),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.7, 1.0, 1.9]),
    st.floats(1.1, 2.0),
)
wants = st.builds(
    Wanted,
    rate=st.floats(0.1, 8.0),
    total_rate=st.sampled_from([0.0, 4.0, 9.0]),
    survive_rate=st.sampled_from([0.0, 2.0]),
    least=st.integers(0, 3),
    most=st.integers(3, 12),
)


def suffices(counts: tuple[int, ...], given_kinds: list[Kind], wanted: Wanted) -> bool:
    def of(values: list[float]) -> float:
        return sum(value * count for value, count in zip(values, counts, strict=True))

    total = sum(counts)
    if not max(wanted.least, 1) <= total <= wanted.most:
        return False
    strongest = max(kind.stable for kind, count in zip(given_kinds, counts, strict=True) if count)
    carried = any(
        total >= tier and of([kind.good[place] for kind in given_kinds]) >= wanted.rate - 1e-9
        for place, tier in enumerate(TIERS)
    )
    whole = of([kind.whole for kind in given_kinds]) >= wanted.total_rate - 1e-9
    left = of([kind.stable for kind in given_kinds]) - strongest
    return carried and whole and (not wanted.survive_rate or left >= wanted.survive_rate - 1e-9)


@settings(max_examples=150, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=4), wants)
def test_it_costs_what_the_best_of_all_combinations_does(given_kinds: list[Kind], wanted: Wanted) -> None:
    ranges = [range(kind.low, kind.high + 1) for kind in given_kinds]
    able = [counts for counts in product(*ranges) if suffices(counts, given_kinds, wanted)]
    found = cheapest(given_kinds, TIERS, wanted)
    if not able:
        assert found is None
        return
    best = min(sum(k.cost(n) for k, n in zip(given_kinds, counts, strict=True)) for counts in able)
    assert found is not None
    assert suffices(found.counts, given_kinds, wanted)
    assert found.cost == pytest.approx(best, abs=1e-6)


class More(TypedDict, total=False):
    """Of a `Need`, what a test may add."""

    survive_rate: float
    total_rate: float
    whole: Mapping[Role, Sequence[float]]
    present: Counts
    least: int
    most: int
    floor: Counts


def need(wanted: Demand, **more: Unpack[More]) -> Need:
    variants = [variant("big"), variant("small", speed=0.6, cost_per_hour=0.7)]
    sizings = {role: size(role, variants, wanted, Objective(), [0, 0], wanted.rate) for role in ROLES}
    return Need(pool="m", sizings=sizings, rate=wanted.rate, **more)


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0.1, 30.0),
    survive=st.sampled_from([0.0, 1.0]),
    batch=st.sampled_from([0.0, 1.3]),
    lowest=st.integers(1, 4),
    most=st.integers(2, 40),
)
def test_role_by_role_costs_what_the_integer_programme_finds(
    rate: float, survive: float, batch: float, lowest: int, most: int
) -> None:
    one = need(
        demand(rate),
        survive_rate=survive * rate,
        total_rate=batch * rate,
        whole={role: [2.0, 1.2] for role in ROLES},
        least=min(lowest, most),
        most=most,
    )
    found, joint = solve([one], {})[0], together([one], {})
    assert (found is None) == (joint is None)
    if found is not None and joint is not None:
        assert abs(found.cost - joint[0].cost) <= 0.003 * found.cost


def test_what_stays_is_kept_however_dear() -> None:
    one = need(demand(4.0), present={(Role.BOTH, "small"): 5}, floor={(Role.BOTH, "small"): 5})
    solution = solve([one], {})[0]
    assert solution is not None
    assert solution.form is Form.AGGREGATED
    assert solution.counts[Role.BOTH, "small"] == 5


def test_what_stays_goes_where_it_would_leave_no_plan() -> None:
    one = need(demand(8.0), most=4, present={(Role.BOTH, "small"): 4}, floor={(Role.BOTH, "small"): 4})
    solution = solve([one], {})[0]
    assert solution is not None
    assert solution.counts.get((Role.BOTH, "small"), 0) < 4


def test_bounds_of_a_variant_hold_over_both_roles() -> None:
    variants = [variant("big", least=9)]
    wanted = demand(6.0)
    roles = (Role.PREFILL, Role.DECODE)
    sizings = {role: size(role, variants, wanted, Objective(), [0], wanted.rate) for role in roles}
    one = Need(pool="m", sizings=sizings, rate=wanted.rate)
    eager = solve([one], {})[0]
    assert eager is not None
    assert sum(eager.counts.values()) == 9
    few = [variant("big", most=2)]
    scarce = {role: sizing._replace(variants=tuple(few)) for role, sizing in sizings.items()}
    assert solve([msgspec.structs.replace(one, sizings=scarce)], {}) == [None]
