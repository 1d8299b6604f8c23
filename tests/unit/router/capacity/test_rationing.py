from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.judgement import judge
from router.capacity.plan import Rules
from router.capacity.rationing import rationed
from router.core import Role
from tests.support.planning import demand, variant, view

WIDE = variant("wide", speed=2.0, hardware="h100", accelerators=8, cost_per_hour=20.0)
NARROW = variant("narrow", hardware="h100", accelerators=4, cost_per_hour=12.0)
SPLIT = Rules(aggregated=False, disaggregated=True)


def test_of_scarce_hardware_what_gives_most_of_each_accelerator_is_taken_not_what_gives_most_for_its_money() -> None:
    thrifty = variant("thrifty", speed=0.5, hardware="h100", accelerators=4, cost_per_hour=1.0)
    one = judge(view(demand(50.0), variants=[NARROW, thrifty]))
    assert rationed([one], {"h100": 12})[0].counts == {(Role.BOTH, "narrow"): 3}


def test_what_is_left_of_it_goes_to_what_still_fits() -> None:
    one = judge(view(demand(90.0), variants=[variant("wide", speed=3.0, hardware="h100", accelerators=8), NARROW]))
    assert rationed([one], {"h100": 12})[0].counts == {(Role.BOTH, "wide"): 1, (Role.BOTH, "narrow"): 1}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rate=st.floats(1.0, 60.0), quota=st.integers(0, 60), most=st.integers(1, 12), present=st.integers(0, 3))
def test_neither_quota_nor_bound_is_exceeded_and_nothing_goes(rate: float, quota: int, most: int, present: int) -> None:
    ready = {(Role.PREFILL, "narrow"): present, (Role.DECODE, "wide"): 1}
    rules = Rules(aggregated=False, disaggregated=True, most=most)
    one = judge(view(demand(rate), ready, variants=[WIDE, NARROW], rules=rules))
    counts = rationed([one], {"h100": quota})[0].counts
    size = {"wide": 8, "narrow": 4}
    assert sum(size[name] * (n - ready.get((role, name), 0)) for (role, name), n in counts.items()) <= quota
    assert all(counts.get(key, 0) >= count for key, count in ready.items())
    for role in (Role.PREFILL, Role.DECODE):
        there = sum(count for (its, _), count in ready.items() if its is role)
        assert sum(count for (its, _), count in counts.items() if its is role) <= max(most, there)


def test_no_role_is_left_without_an_engine_while_the_other_has_more_than_one() -> None:
    one = judge(view(demand(40.0), variants=[NARROW], rules=SPLIT))
    assert set(rationed([one], {"h100": 8})[0].counts.values()) == {1}
