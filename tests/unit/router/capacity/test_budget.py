"""Misses that are allowed and not used are spent, and no more than these."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.capacity.budget import Budget, eased
from router.capacity.plan import Record

HOUR_S = 3600.0
CLEAN = Record(answered=5000, missed=5, lately=400)
SPENT = Record(answered=5000, missed=40, lately=400)


def test_while_few_have_missed_more_may_at_one_moment() -> None:
    ease = Budget().ease(0.0, CLEAN, 0.99, HOUR_S)
    assert ease == 1.0
    assert eased(0.99, ease) == pytest.approx(0.97)
    assert eased(0.99, 0.0) == pytest.approx(0.99)


@pytest.mark.parametrize("record", [SPENT, Record(answered=5000, missed=26, lately=400, missed_lately=25)])
def test_a_budget_that_is_used_up_over_the_window_or_fast_is_no_longer_spent(record: Record) -> None:
    assert Budget().ease(0.0, record, 0.99, HOUR_S) == 0.0


def test_on_the_same_load_it_is_not_tried_again_and_on_another_it_comes_back_by_and_by() -> None:
    budget = Budget()
    budget.loaded(4.0)
    budget.ease(0.0, SPENT, 0.99, HOUR_S)
    budget.loaded(4.5)
    assert budget.ease(9 * HOUR_S, CLEAN, 0.99, HOUR_S) == 0.0
    budget.loaded(5.0)
    assert budget.ease(9 * HOUR_S, CLEAN, 0.99, HOUR_S) == 0.0
    assert budget.ease(9 * HOUR_S + 900.0, CLEAN, 0.99, HOUR_S) == pytest.approx(0.5)
    assert budget.ease(10 * HOUR_S, CLEAN, 0.99, HOUR_S) == 1.0


def test_what_nobody_has_seen_answered_is_planned_for_as_asked() -> None:
    assert Budget().ease(0.0, Record(), 0.99, HOUR_S) == 0.0
    assert Budget().ease(0.0, Record(answered=150, lately=150), 0.99, HOUR_S) == 0.5


def test_a_window_that_has_only_begun_allows_what_it_will_hold() -> None:
    young = Record(answered=400, missed=6, lately=400, missed_lately=6)
    assert Budget().ease(0.0, young, 0.99, HOUR_S) == 1.0
    old = Record(answered=400, missed=6, lately=30)
    assert Budget().ease(0.0, old, 0.99, HOUR_S) == 0.0


@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.floats(0.5, 0.999))
def test_nothing_is_eased_once_as_many_have_missed_as_may(answered: int, share: float, attainment: float) -> None:
    missed = round(share * answered)
    ease = Budget().ease(0.0, Record(answered=answered, missed=missed), attainment, HOUR_S)
    assert 0.0 <= ease <= 1.0
    assert eased(attainment, ease) <= attainment + 1e-12
    if missed >= 3 and missed >= (1.0 - attainment) * answered:
        assert ease == 0.0
