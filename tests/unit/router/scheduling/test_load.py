from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.load import least_is_best, loads, running, waiting
from tests.support.scheduling import candidate

counts = st.integers(0, 500)


def test_without_a_scrape_our_own_count_is_the_load() -> None:
    assert loads([candidate(inflight=3), candidate()]) == [3, 0]


def test_a_stale_scrape_does_not_hide_a_burst_of_ours() -> None:
    assert loads([candidate(running=2, waiting=0, inflight=9)]) == [9]


def test_requests_of_others_count() -> None:
    assert loads([candidate(running=8, waiting=4, inflight=3)]) == [12]


def test_unknown_counts_stay_unknown() -> None:
    assert waiting([candidate(inflight=4), candidate(running=3, inflight=4)]) == [None, None]
    assert running([candidate(inflight=4), candidate(waiting=3, inflight=4)]) == [None, None]


@given(counts, counts, counts)
def test_estimates_are_never_negative_and_load_is_at_least_our_own(own: int, active: int, queued: int) -> None:
    subject = [candidate(inflight=own, running=active, waiting=queued)]
    (still,), (works,) = waiting(subject), running(subject)
    assert still is not None
    assert works is not None
    assert loads(subject)[0] >= own
    assert still >= queued
    assert works >= active


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1))
def test_unknown_is_never_the_best_where_something_is_known(values: list[float | None]) -> None:
    scores = least_is_best(values)
    assert all(0.0 <= score <= 1.0 for score in scores)
    if any(value is not None for value in values):
        best = max(range(len(scores)), key=scores.__getitem__)
        assert values[best] is not None
