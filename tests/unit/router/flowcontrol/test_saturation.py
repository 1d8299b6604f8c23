from __future__ import annotations

import msgspec
import pytest

from router.core import EndpointMetrics, Inflight
from router.flowcontrol.saturation import (
    UNKNOWN_LIMIT,
    ConcurrencyDetector,
    EitherDetector,
    Seen,
    UtilizationDetector,
    Watch,
)
from tests.support.journey import endpoint


def seen(
    inflight: int = 0,
    *,
    running: float | None = None,
    waiting: float | None = None,
    kv: float | None = None,
    taken_at: float = 0.0,
    now: float = 0.0,
    unanswered: int | None = None,
    tokens: int = 0,
) -> Seen:
    metrics = EndpointMetrics(taken_at=taken_at, running=running, waiting=waiting, kv_usage=kv)
    state = msgspec.structs.replace(endpoint("a"), metrics=metrics)
    return Seen(state, Inflight(inflight, 0, tokens), unanswered, now)


def with_inflight(before: Seen, inflight: int, unanswered: int | None = None) -> Seen:
    return before._replace(inflight=Inflight(inflight, 0, 0), unanswered=unanswered)


def utilization() -> UtilizationDetector:
    return UtilizationDetector(Watch(), queue_depth=4, kv_usage=0.9, max_age_s=5.0)


@pytest.mark.parametrize(("waiting", "expected"), [(0, 0.0), (2, 0.5), (4, 1.0), (8, 2.0)])
def test_an_engine_is_saturated_by_what_waits_inside_it(waiting: int, expected: float) -> None:
    assert utilization().saturation(seen(20, running=16, waiting=waiting)) == expected


def test_an_engine_is_saturated_when_its_kv_space_is_in_use() -> None:
    assert utilization().saturation(seen(running=3, waiting=0, kv=0.9)) == 1.0


def test_old_metrics_saturate_nothing_and_neither_do_none() -> None:
    assert utilization().saturation(seen(running=9, waiting=50, taken_at=0.0, now=5.1)) == 0.0
    assert utilization().saturation(Seen(endpoint("a"), Inflight(500, 0, 0), None, 0.0)) == 0.0


def test_what_was_sent_and_finished_since_the_scrape_counts() -> None:
    detector = utilization()
    scrape = seen(18, running=16, waiting=2)
    assert detector.saturation(scrape) == 0.5
    assert detector.saturation(with_inflight(scrape, 20)) == 1.0
    assert detector.saturation(with_inflight(scrape, 16)) == 0.0


def test_requests_that_gave_their_first_token_do_not_wait_whatever_the_scrape_said() -> None:
    detector = utilization()
    scrape = seen(20, running=12, waiting=8)
    assert detector.saturation(scrape) == 2.0
    assert detector.saturation(with_inflight(scrape, 20, unanswered=1)) == 0.25


def test_how_many_an_engine_runs_is_learnt_while_something_waits_and_unlearnt_when_it_runs_more() -> None:
    watch = Watch()
    watch.look(seen(running=16, waiting=3))
    assert watch.limit("a") == 16
    watch.look(seen(running=16, waiting=0))
    assert watch.limit("a") == 16
    watch.look(seen(running=17, waiting=0))
    assert watch.limit("a") is None
    watch.look(seen(running=16, waiting=3))
    watch.forget("a")
    assert watch.limit("a") is None


def test_a_burst_between_two_scrapes_fills_an_engine_to_what_it_was_seen_to_run() -> None:
    watch = Watch()
    detector = UtilizationDetector(watch, queue_depth=4, kv_usage=0.9, max_age_s=5.0)
    watch.look(seen(20, running=16, waiting=4))
    idle = seen(0, running=0, waiting=0, taken_at=1.0)
    assert detector.saturation(idle) == 0.0
    assert detector.saturation(with_inflight(idle, 16)) == 0.0
    assert detector.saturation(with_inflight(idle, 20)) == 1.0


def test_concurrency_is_requests_or_tokens_against_a_limit() -> None:
    detector = ConcurrencyDetector(Watch(), queue_depth=4, max_requests=10, max_tokens=1000)
    assert detector.saturation(seen(5, tokens=900)) == 0.9
    assert detector.saturation(seen(10, tokens=10)) == 1.0


def test_a_limit_that_is_not_configured_is_what_the_engine_runs_and_a_few_more() -> None:
    watch = Watch()
    detector = ConcurrencyDetector(watch, queue_depth=4)
    assert detector.saturation(seen(UNKNOWN_LIMIT)) == 0.0
    assert detector.saturation(seen(20, running=16, waiting=4)) == 1.0
    assert detector.saturation(seen(16, running=16, waiting=4)) == 0.0


def test_either_signal_is_enough() -> None:
    watch = Watch()
    either = EitherDetector([utilization(), ConcurrencyDetector(watch, queue_depth=4, max_requests=10)])
    assert either.saturation(seen(12, running=1, waiting=0)) == 1.2
    assert either.saturation(seen(1, running=1, waiting=8)) == 2.0
