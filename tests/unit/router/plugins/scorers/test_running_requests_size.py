from router.plugins.scorers.running_requests_size import RunningRequestsSizeScorer
from tests.support.scheduling import candidate, context


def test_fewer_running_requests_are_better() -> None:
    candidates = [candidate(running=n) for n in (4, 0, 8)]
    assert RunningRequestsSizeScorer().score(context(), candidates) == [0.5, 1.0, 0.0]


def test_unknown_is_neutral() -> None:
    assert RunningRequestsSizeScorer().score(context(), [candidate(), candidate(waiting=1)]) == [0.5, 0.5]


def test_what_was_dispatched_since_the_scrape_counts_as_running() -> None:
    burst, steady = candidate(running=2, inflight=10), candidate(running=2, inflight=2)
    assert RunningRequestsSizeScorer().score(context(), [burst, steady]) == [0.0, 1.0]
