from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import NO_INFLIGHT, Inflight
from router.inflight import InflightTracker, waiting
from router.scheduling.cost import assumed
from router.sharing import own_load


def test_a_lease_counts_from_acquire_to_release() -> None:
    tracker = InflightTracker()
    lease = tracker.acquire("a", prefill_tokens=100, tokens=150)
    assert tracker.get("a") == Inflight(1, 100, 150)
    lease.first_token()
    assert tracker.get("a") == Inflight(1, 0, 150)
    lease.release()
    assert tracker.get("a") == NO_INFLIGHT


def test_releasing_twice_counts_once() -> None:
    tracker = InflightTracker()
    other = tracker.acquire("a", prefill_tokens=1, tokens=2)
    lease = tracker.acquire("a", prefill_tokens=10, tokens=20)
    lease.release()
    lease.release()
    lease.first_token()
    assert tracker.get("a") == Inflight(1, 1, 2)
    other.release()


def test_an_idle_endpoint_takes_no_memory() -> None:
    tracker = InflightTracker()
    tracker.acquire("a", prefill_tokens=0, tokens=0).release()
    assert tracker.snapshot() == {}


def test_counts_below_zero_are_a_defect_and_say_so() -> None:
    with pytest.raises(AssertionError, match="below zero"):
        InflightTracker().add("a", -1, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_whatever_is_taken_returns(leases: list[tuple[str, int, int, bool]]) -> None:
    tracker = InflightTracker()
    taken = []
    for endpoint, prefill_tokens, tokens, answered in leases:
        lease = tracker.acquire(endpoint, prefill_tokens=prefill_tokens, tokens=tokens)
        if answered:
            lease.first_token()
        taken.append(lease)
    assert sum(tracker.get(name).requests for name in "abc") == len(leases)
    for lease in taken:
        lease.release()
    assert tracker.snapshot() == {}


@pytest.mark.parametrize(("queued", "left"), [(0, 0), (70, 70), (100, 100), (500, 100)])
def test_prefill_that_the_engine_must_have_done_waits_no_longer_here_nor_for_other_routers(
    queued: int, left: int
) -> None:
    tracker = InflightTracker()
    tracker.acquire("a", prefill_tokens=100, tokens=150)
    estimate = assumed(Inflight(1, queued, 150))
    assert waiting(tracker.get("a"), estimate) == Inflight(1, left, 150)
    assert own_load(tracker, lambda _: estimate) == {"a": (1, left, 150)}
    assert own_load(tracker, lambda _: None) == {"a": (1, 100, 150)}
