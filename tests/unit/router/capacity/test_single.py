"""In closed form as by the solver."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.demand import Demand, Objective
from router.capacity.programme import Form, Need, solve
from router.capacity.single import least
from router.capacity.sizing import size
from router.core import Role
from tests.support.planning import demand, variant

ROLES = (Role.BOTH, Role.PREFILL, Role.DECODE)


def need(wanted: Demand, *, twins: bool = False, **fields: object) -> Need:
    """With twins of one variant the solver has to be asked; neither is better than the other."""
    variants = [variant(name) for name in ("big", "twin")[: 1 + twins]]
    sizings = {role: size(role, variants, wanted, Objective(), [0] * len(variants), wanted.rate) for role in ROLES}
    return Need(pool="m", sizings=sizings, rate=wanted.rate, **fields)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(0.1, 40.0),
    survive=st.sampled_from([0.0, 0.5, 1.0]),
    batch=st.sampled_from([0.0, 1.3]),
    lowest=st.integers(1, 4),
    most=st.integers(2, 40),
)
def test_it_costs_what_the_solver_finds(rate: float, survive: float, batch: float, lowest: int, most: int) -> None:
    more = {
        "survive_rate": survive * rate,
        "total_rate": batch * rate,
        "whole": {role: [2.0, 2.0] for role in ROLES},
        "least": min(lowest, most),
        "most": most,
    }
    closed, solved = (solve([need(demand(rate), twins=twins, **more)], {})[0] for twins in (False, True))
    assert (closed is None) == (solved is None)
    if closed is not None and solved is not None:
        assert abs(closed.cost - solved.cost) <= max(0.003 * solved.cost, 1e-6)


def test_an_engine_that_costs_more_to_drain_than_it_saves_stays() -> None:
    one = need(demand(1.0), present={(Role.BOTH, "big"): 5}, drain_cost={"big": 2.0})
    assert least(one, Form.AGGREGATED) == {Role.BOTH: 5}


def test_bounds_of_the_variant_hold_over_both_roles() -> None:
    one = need(demand(6.0))
    total = sum((least(one, Form.DISAGGREGATED) or {}).values())
    assert total > 2
    for bound, most in ((total - 1, total - 1), (0, total)):
        limited = variant("big", most=most, least=min(bound, most))
        sizings = {role: sizing._replace(variants=(limited,)) for role, sizing in one.sizings.items()}
        found = least(msgspec.structs.replace(one, sizings=sizings), Form.DISAGGREGATED)
        assert (found is None) == (most < total)
    eager = {role: sizing._replace(variants=(variant("big", least=9),)) for role, sizing in one.sizings.items()}
    found = least(msgspec.structs.replace(one, sizings=eager), Form.DISAGGREGATED)
    assert found is not None
    assert sum(found.values()) == 9
