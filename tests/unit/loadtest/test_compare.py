"""The comparison's arithmetic: what counts as busy, what an engine computed, and what the table divides."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from loadtest.compare import POLICIES, Outcome, in_flight, max_over_mean, metric, report, table, unmet
from loadtest.locust_run import Result, Times, quantile

PAGE = """# HELP kvrouter_inflight_requests This router's requests on an endpoint
# TYPE kvrouter_inflight_requests gauge
kvrouter_inflight_requests{endpoint="a"} 12
kvrouter_inflight_requests{endpoint="b"} 4
kvrouter_inflight_requests_of_another_kind{endpoint="a"} 99
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1500.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 2.5e3
"""


def outcome(policy: str, computed: int, samples: list[dict[str, int]]) -> Outcome:
    result = Result(requests=10, failures=0, hit_rate=0.5, times={"TTFT": Times(12, 40)})
    return Outcome(policy, result, 9.6, 1000, computed, samples)


def test_in_flight_is_read_by_endpoint() -> None:
    assert in_flight(PAGE) == {'endpoint="a"': 12, 'endpoint="b"': 4}


def test_series_of_one_metric_are_found_and_those_of_longer_names_are_not() -> None:
    assert [value for _, value in metric(PAGE, "vllm:prefix_cache_queries_total")] == [1500.0, 2500.0]
    assert list(metric(PAGE, "vllm:prefix_cache")) == []


@pytest.mark.parametrize(
    ("sample", "spread"),
    [
        ({"a": 8, "b": 8}, 1.0),
        ({"a": 24, "b": 8}, 1.5),
        ({"a": 16, "b": 0}, 2.0),
        ({"a": 15, "b": 0}, None),
        ({}, None),
    ],
)
def test_a_sample_counts_only_while_every_engine_could_have_eight(sample: dict[str, int], spread: float | None) -> None:
    assert max_over_mean(sample) == spread


def test_imbalance_is_the_mean_over_busy_samples() -> None:
    made = outcome("default", 300, [{"a": 8, "b": 8}, {"a": 24, "b": 8}, {"a": 1, "b": 0}])
    assert made.imbalance == 1.25
    assert len(made.busy_samples) == 2
    assert outcome("default", 300, []).imbalance is None


def test_the_table_compares_with_the_last_policy() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table([outcome("default", 300, []), outcome("round-robin", 600, [{"a": 24, "b": 8}])]))
    text = captured.get()
    assert "0.50" in text
    assert "1.00" in text
    assert "12 / 40" in text


def test_the_report_says_what_the_table_says() -> None:
    told = json.loads(report([outcome("default", 300, [{"a": 24, "b": 8}])]))
    assert told[0]["computed_tokens"] == 300
    assert told[0]["imbalance"] == 1.5
    assert told[0]["times_ms"] == {"TTFT": {"median": 12, "p95": 40}}


def test_the_reference_comes_last() -> None:
    assert list(POLICIES)[-1] == "round-robin"


@pytest.mark.parametrize(
    ("histogram", "share", "value"),
    [
        ({"1": 1, "10": 1, "100": 2}, 0.5, 10),
        ({"1": 1, "10": 1, "100": 2}, 0.95, 100),
        ({}, 0.5, 0),
        ({"2.5": 3}, 0.5, 2.5),
    ],
)
def test_quantiles_of_a_histogram(histogram: dict[str, int], share: float, value: float) -> None:
    assert quantile(histogram, share) == value


@pytest.mark.parametrize(
    ("ratio", "spread", "complaints"),
    [(None, None, 0), (0.5, 1.5, 0), (0.4, 1.5, 1), (0.5, 1.4, 1), (0.4, 1.4, 2)],
)
def test_demands_that_are_not_met_are_said(ratio: float | None, spread: float | None, complaints: int) -> None:
    outcomes = [outcome("default", 300, [{"a": 24, "b": 8}]), outcome("round-robin", 600, [])]
    assert len(unmet(outcomes, ratio=ratio, spread=spread)) == complaints


def test_a_run_that_was_never_busy_does_not_pass_for_even() -> None:
    assert unmet([outcome("default", 300, [{"a": 1, "b": 0}])] * 2, ratio=None, spread=2.0)
