from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.observability.merge import counts, merge


def page(requests: int, active: int, exact: int, lag: float, ttft: float) -> bytes:
    registry = CollectorRegistry()
    counter = Counter("kvrouter_requests", "r", ["api", "outcome"], registry=registry)
    counter.labels("chat", "ok").inc(requests)
    Gauge("kvrouter_active_requests", "a", registry=registry).set(active)
    Gauge("kvrouter_index_exact", "e", ["endpoint"], registry=registry).labels("x").set(exact)
    Gauge("kvrouter_loop_lag_seconds", "l", registry=registry).set(lag)
    Histogram("kvrouter_ttft_seconds", "t", buckets=(0.1, 1.0), registry=registry).observe(ttft)
    return generate_latest(registry)


def series(merged: bytes) -> dict[str, float]:
    lines = [line for line in merged.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_counts_add_up_and_gauges_say_what_holds_for_all() -> None:
    merged = series(merge([page(3, 2, 1, 0.5, 0.05), page(4, 5, 0, 0.1, 0.5)]))
    assert merged['kvrouter_requests_total{api="chat",outcome="ok"}'] == 7
    assert merged["kvrouter_active_requests"] == 7
    assert merged['kvrouter_index_exact{endpoint="x"}'] == 0
    assert merged["kvrouter_loop_lag_seconds"] == 0.5
    assert merged['kvrouter_ttft_seconds_bucket{le="0.1"}'] == 1
    assert merged["kvrouter_ttft_seconds_count"] == 2


def test_one_page_stays_what_it_is() -> None:
    alone = page(3, 2, 1, 0.5, 0.05)
    assert series(merge([alone])) == series(alone)
    assert [line for line in merge([alone]).decode().splitlines() if line.startswith("#")] == [
        line for line in alone.decode().splitlines() if line.startswith("#")
    ]


def test_what_a_worker_that_is_gone_counted_stays_and_its_gauges_go() -> None:
    gone = counts([counts([page(10, 9, 0, 9.0, 0.5)]), page(1, 1, 0, 9.0, 0.5)])
    merged = series(merge([page(3, 2, 1, 0.5, 0.05)], [gone]))
    assert merged['kvrouter_requests_total{api="chat",outcome="ok"}'] == 14
    assert merged["kvrouter_ttft_seconds_count"] == 3
    assert merged["kvrouter_active_requests"] == 2
    assert merged["kvrouter_loop_lag_seconds"] == 0.5
    assert merged['kvrouter_index_exact{endpoint="x"}'] == 1
