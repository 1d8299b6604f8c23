from router.plugins.scorers.queue import QueueScorer
from tests.support.scheduling import candidate, context


def test_the_shortest_queue_is_best_and_the_longest_worst() -> None:
    candidates = [candidate(running=0, waiting=n) for n in (0, 5, 10)]
    assert QueueScorer().score(context(), candidates) == [1.0, 0.5, 0.0]


def test_equal_queues_are_all_good() -> None:
    assert QueueScorer().score(context(), [candidate(waiting=3), candidate(waiting=3)]) == [1.0, 1.0]


def test_an_unknown_queue_is_neutral_even_against_equal_ones() -> None:
    assert QueueScorer().score(context(), [candidate(), candidate(waiting=3), candidate(waiting=3)]) == [0.5, 1.0, 1.0]


def test_what_was_dispatched_since_the_scrape_counts_as_waiting() -> None:
    burst, idle = candidate(running=0, waiting=0, inflight=4), candidate(running=0, waiting=0)
    assert QueueScorer().score(context(), [burst, idle]) == [0.0, 1.0]
