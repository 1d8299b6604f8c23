from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import EndpointMetrics, EndpointState
from router.flowcontrol.room import Gauge
from router.flowcontrol.saturation import ConcurrencyDetector, Detector, EitherDetector, UtilizationDetector, Watch
from router.inflight import InflightTracker
from router.sharing import Alone
from tests.support.journey import endpoint


def utilization(watch: Watch) -> Detector:
    return UtilizationDetector(watch, queue_depth=4, kv_usage=0.9, max_age_s=5.0)


def either(watch: Watch) -> Detector:
    return EitherDetector([utilization(watch), ConcurrencyDetector(watch, queue_depth=4)])


def gauge(detector: Detector, requests: int) -> Gauge:
    inflight = InflightTracker()
    for _ in range(requests):
        inflight.acquire("a", prefill_tokens=0, tokens=1)
    return Gauge(detector, inflight, Alone(), lambda _: None)


def scraped(running: float, waiting: float) -> EndpointState:
    metrics = EndpointMetrics(taken_at=0.0, running=running, waiting=waiting, kv_usage=0.1)
    return msgspec.structs.replace(endpoint("a"), metrics=metrics)


@pytest.mark.parametrize("detector", [utilization, either])
def test_what_is_kept_is_kept_of_an_engines_own_queue_too(detector: Callable[[Watch], Detector]) -> None:
    state = scraped(running=16, waiting=3)
    room = gauge(detector(Watch()), 19)
    assert not room.decode_room([state], 0.0, spare=1)
    assert room.decode_room([state], 0.0)


@given(
    requests=st.integers(0, 40),
    running=st.integers(0, 20),
    waiting=st.integers(0, 6),
    spare=st.integers(0, 3),
    maximum=st.integers(1, 40) | st.none(),
)
def test_what_is_kept_for_some_changes_nothing_for_others(
    requests: int, running: int, waiting: int, spare: int, maximum: int | None
) -> None:
    def fresh() -> Gauge:
        watch = Watch()
        concurrency = ConcurrencyDetector(watch, queue_depth=4, max_requests=maximum)
        return gauge(EitherDetector([utilization(watch), concurrency]), requests)

    state, asked_before = scraped(running, waiting), fresh()
    kept = asked_before.saturation(state, 0.0, spare)
    assert asked_before.saturation(state, 0.0) == fresh().saturation(state, 0.0)
    assert kept >= fresh().saturation(state, 0.0)


@given(limit=st.integers(1, 5), spare=st.integers(0, 9))
def test_an_idle_endpoint_keeps_nothing_and_a_busy_one_all_it_is_to_keep(limit: int, spare: int) -> None:
    detector = ConcurrencyDetector(Watch(), queue_depth=1, max_requests=limit)
    assert gauge(detector, 0).decode_room([endpoint("a")], 0.0, spare)
    for requests in range(1, limit + 1):
        assert gauge(detector, requests).decode_room([endpoint("a")], 0.0, spare) == (requests + spare < limit)
