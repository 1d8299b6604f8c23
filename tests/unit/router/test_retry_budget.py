"""Retries are bounded by a share of the last seconds' requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.retry_budget import RetryBudget


def test_a_quiet_router_may_retry_as_often_as_its_reserve() -> None:
    budget = RetryBudget(ratio=0.2, reserve=2)
    for _ in range(2):
        assert budget.allows(0.0)
        budget.take(0.0)
    assert not budget.allows(0.0)
    assert budget.refused == 1


def test_requests_add_their_share() -> None:
    budget = RetryBudget(ratio=0.5, reserve=0)
    assert not budget.allows(0.0)
    budget.request(0.0)
    budget.request(0.0)
    assert budget.allows(0.0)
    budget.take(0.0)
    assert not budget.allows(0.0)


def test_after_the_window_neither_requests_nor_retries_count() -> None:
    budget = RetryBudget(ratio=1.0, reserve=1)
    budget.request(0.0)
    budget.take(0.0)
    budget.take(0.5)
    assert not budget.allows(9.9)
    assert budget.allows(10.9)
    budget.take(10.9)
    assert not budget.allows(10.9)


@given(st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 5)), max_size=200))
def test_in_no_window_are_there_more_retries_than_allowed(steps: list[tuple[str, float]]) -> None:
    budget, now = RetryBudget(ratio=0.3, reserve=3), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for kind, pause in steps:
        now += pause
        if kind == "request":
            budget.request(now)
            requests.append(now)
        elif budget.allows(now):
            budget.take(now)
            retries.append(now)
            # Buckets are whole seconds: at least 9 s and at most 10 s are looked back on.
            recent = sum(at > now - 9 for at in retries)
            assert recent <= 3 + 0.3 * sum(at > now - 10 for at in requests) + 1
