from router.plugins.scorers.active_request import ActiveRequestScorer
from tests.support.scheduling import candidate, context


def test_scores_fall_to_zero_for_the_busiest() -> None:
    candidates = [candidate(inflight=n) for n in (0, 2, 8)]
    assert ActiveRequestScorer().score(context(), candidates) == [1.0, 0.75, 0.0]


def test_an_idle_pool_is_all_good() -> None:
    assert ActiveRequestScorer().score(context(), [candidate(), candidate()]) == [1.0, 1.0]


def test_up_to_the_idle_threshold_nobody_is_busy_and_busy_scores_are_capped() -> None:
    scorer = ActiveRequestScorer(idle_threshold=2, max_busy_score=0.5)
    assert scorer.score(context(), [candidate(inflight=n) for n in (2, 4, 8)]) == [1.0, 0.25, 0.0]


def test_requests_of_other_routers_count_too() -> None:
    others, ours = candidate(running=10, waiting=0), candidate(inflight=5)
    assert ActiveRequestScorer().score(context(), [others, ours]) == [0.0, 0.5]
