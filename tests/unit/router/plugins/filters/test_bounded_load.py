from hypothesis import given
from hypothesis import strategies as st

from router.core import Candidate
from router.plugins.filters.bounded_load import BoundedLoadFilter
from tests.support.scheduling import candidate, context, ids


def pool(*inflight: int) -> list[Candidate]:
    return [candidate(str(i), inflight=n) for i, n in enumerate(inflight)]


def test_an_endpoint_far_above_the_average_is_dropped() -> None:
    assert ids(BoundedLoadFilter(factor=1.25, slack=1).filter(context(), pool(20, 10, 10, 10))) == ["1", "2", "3"]


def test_small_numbers_do_not_break_affinity() -> None:
    assert ids(BoundedLoadFilter().filter(context(), pool(2, 0, 0, 0))) == ["0", "1", "2", "3"]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.floats(1, 3), st.floats(0, 8))
def test_the_least_loaded_always_pass(inflight: list[int], factor: float, slack: float) -> None:
    kept = BoundedLoadFilter(factor=factor, slack=slack).filter(context(), pool(*inflight))
    assert {str(i) for i, n in enumerate(inflight) if n == min(inflight)} <= set(ids(kept))


@given(st.integers(1, 16), st.integers(1, 400))
def test_whoever_is_preferred_never_draws_more_than_its_bounded_share(endpoints: int, requests: int) -> None:
    bound = BoundedLoadFilter(factor=1.25, slack=1)
    inflight = [0] * endpoints
    for _ in range(requests):
        inflight[int(bound.filter(context(), pool(*inflight))[0].id)] += 1
    assert max(inflight) <= 1.25 * requests / endpoints + 2
