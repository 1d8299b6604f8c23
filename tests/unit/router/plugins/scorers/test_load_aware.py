from router.plugins.scorers.load_aware import LoadAwareScorer
from tests.support.scheduling import candidate, context


def test_half_a_point_for_an_empty_queue_and_nothing_from_the_threshold_on() -> None:
    candidates = [candidate(waiting=n) for n in (0, 5, 10, 50)]
    assert LoadAwareScorer(threshold=10).score(context(), candidates) == [0.5, 0.25, 0.0, 0.0]


def test_an_unknown_queue_is_in_the_middle() -> None:
    assert LoadAwareScorer().score(context(), [candidate()]) == [0.25]
