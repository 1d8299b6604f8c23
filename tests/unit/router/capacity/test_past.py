"""A scale-in leaves engines for what chance brings back, and for no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.capacity.past import Past
from router.core import Role

WINDOW_S = 300.0
BIG = (Role.BOTH, "big")


def test_a_load_that_was_there_lately_is_planned_for_as_far_as_chance_explains_it() -> None:
    past = Past()
    past.loaded(0.0, 5.0, 0.5, WINDOW_S)
    past.loaded(60.0, 4.0, 0.5, WINDOW_S)
    assert past.lasting(4.0, 0.5, chance=0.2) == 5.0
    assert past.lasting(4.0, 0.5, chance=0.05) == pytest.approx(4.6)
    assert past.lasting(4.0, 0.5, chance=0.0) == 4.0


def test_lighter_requests_may_come_more_often() -> None:
    past = Past()
    past.loaded(0.0, 5.0, 0.5, WINDOW_S)
    assert past.lasting(9.0, 0.25, chance=0.2) == 10.0


def test_a_load_is_forgotten_after_some_windows() -> None:
    past = Past()
    past.loaded(0.0, 5.0, 0.5, WINDOW_S)
    past.loaded(25 * WINDOW_S, 4.0, 0.5, WINDOW_S)
    assert past.lasting(4.0, 0.5, chance=0.2) == 4.0


def test_in_a_real_fall_only_its_last_part_is_remembered() -> None:
    past = Past()
    for step, rate in enumerate((9.0, 8.0, 7.0, 6.0)):
        past.loaded(30.0 * step, rate, 0.5, WINDOW_S, falling_s=600.0)
    assert past.lasting(6.0, 0.5, chance=1.0) == 7.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=60))
def test_what_lasts_is_the_greatest_load_of_the_memory(rates: list[float]) -> None:
    past = Past()
    for step, rate in enumerate(rates):
        past.loaded(WINDOW_S * step, rate, 1.0, WINDOW_S)
    assert past.lasting(rates[-1], 1.0, chance=1e6) == max(rates[-25:])


def test_of_the_window_the_most_expensive_need_counts() -> None:
    past = Past()
    for step, count in enumerate((5, 3, 4)):
        past.suffices(200.0 * step, float(count), {BIG: count}, WINDOW_S)
    assert past.greatest().counts == {BIG: 4}
    assert past.known_s(400.0) == 400.0


@pytest.mark.parametrize(("rate", "regret"), [(4.2, 0.1), (5.0, 0.0)])
def test_a_scale_in_is_regretted_only_where_the_demand_has_not_grown(rate: float, regret: float) -> None:
    past = Past()
    past.scaled_in(0.0, 4.0)
    past.scaled_out(600.0, rate)
    assert past.regret(600.0) == regret
    assert past.regret(600.0 + 3600.0) == regret / 2


def test_regret_has_an_end() -> None:
    past = Past()
    for _ in range(10):
        past.scaled_in(0.0, 4.0)
        past.scaled_out(0.0, 4.0)
    assert past.regret(0.0) == pytest.approx(0.3)
