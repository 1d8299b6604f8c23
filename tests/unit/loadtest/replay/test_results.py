from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from loadtest.replay.compare import ratio, regret, ttft
from loadtest.replay.plan import Plan
from loadtest.replay.report import as_json, make_report
from loadtest.replay.results import Result, Run, Share, Slo, Spread, Window, summarize
from loadtest.replay.workload import Workload
from router.observability.events import Outcome

WORKLOAD = Workload(name="t", block_size=512, requests=())


def result(number: int, ttft_s: float | None, **more: Any) -> Result:
    values: dict[str, Any] = {
        "number": number,
        "at": float(number),
        "prompt": 100,
        "output": 11,
        "cached": 40,
        "endpoint": f"e{number % 2}",
        "prefill_endpoint": None,
        "outcome": Outcome.OK,
        "ttft_s": ttft_s,
        "e2e_s": (ttft_s or 0.0) + 0.5,
    }
    return Result(**(values | more))


def run(policy: str, results: list[Result], seed: int = 1) -> Run:
    shares = [Share(endpoint=f"e{i}", busy_s=1.0 + i, prefilled=60, preempted=0) for i in range(2)]
    return Run(policy=policy, seed=seed, results=results, shares=shares, ended_s=9.0, cpu_s=2.0, decide_s=1e-4)


def test_a_summary_counts_what_arrived_in_the_window() -> None:
    results = [result(n, 0.1 * n) for n in range(10)]
    summary = summarize(run("a", results), [Slo(0.55, 0.05), Slo(0.55, 0.04)], Window(2.0, 8.0))
    assert summary.requests == 6
    assert summary.ttft.mean == pytest.approx(0.45)
    assert summary.tpot.p50 == pytest.approx(0.05)
    assert summary.goodput == [pytest.approx(4 / 6), 0.0]
    assert summary.hit_rate == pytest.approx(0.4)
    assert summary.load_spread == 1.0
    assert summary.busy_spread == pytest.approx(4 / 3)
    assert summary.requests_per_s == 5.0
    assert summary.decisions_per_s == pytest.approx(1e4)


def test_what_failed_is_no_fast_answer() -> None:
    results = [result(0, 0.1), result(1, None, outcome=Outcome.REFUSED), result(2, 0.1, outcome=Outcome.CUT)]
    summary = summarize(run("a", results), [Slo(2.0, 1.0)], Window())
    assert summary.failed == 2
    (goodput,) = summary.goodput
    assert goodput == pytest.approx(1 / 3)
    assert summary.ttft.mean == pytest.approx(0.1)


def test_reasons_are_counted_and_predictions_judged_by_what_came() -> None:
    results = [
        result(n, 1.0, reason="pd" if n else "aggregated", predicted_s=p, answered_s=2.0)
        for n, p in enumerate((1.0, 2.0, 5.0))
    ]
    summary = summarize(run("a", results), [], Window())
    assert summary.reasons == {"aggregated": 1, "pd": 2}
    assert summary.prediction_error == pytest.approx(0.5)
    assert summarize(run("a", [result(0, 1.0)]), [], Window()).prediction_error is None


def test_quantiles_lie_between_ranks() -> None:
    spread = Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (spread.mean, spread.p50) == (3.0, 3.0)
    assert spread.p90 == pytest.approx(4.6)
    assert math.isnan(Spread.of([]).mean)


def test_a_ratios_interval_excludes_one_only_where_the_difference_is_no_chance() -> None:
    base = [run("b", [result(n, 1.0 + n % 7) for n in range(200)], seed) for seed in (1, 2)]
    better = [run("a", [result(n, 0.8 * (1.0 + n % 7)) for n in range(200)], seed) for seed in (1, 2)]
    other = [run("c", [result(n, 1.0 + (n * n) % 7) for n in range(200)], seed) for seed in (1, 2)]
    clear, same = ratio(better, base, ttft, Window()), ratio(other, base, ttft, Window())
    assert clear is not None and same is not None
    assert clear.value == pytest.approx(0.8)
    assert clear.high < 1.0
    assert same.low <= same.value <= same.high
    assert ratio(better, [], ttft, Window()) is None


def test_regret_is_the_share_of_what_round_robin_loses_to_the_bound() -> None:
    assert regret(1.5, 1.0, 3.0) == pytest.approx(0.25)
    assert regret(1.5, 1.0, 1.0) is None
    assert regret(1.5, 1.0, 1.01) is None


def test_the_reports_json_has_every_policy_and_null_for_what_is_unknown() -> None:
    runs = [run("pooled", [result(0, 1.0)]), run("round-robin", [result(0, 3.0)]), run("x", [result(0, 2.0, output=1)])]
    plan = Plan(traces=["t"], policies=["pooled", "round-robin", "x"])
    told = json.loads(as_json(make_report(plan, WORKLOAD, runs, "round-robin")))
    assert [row["policy"] for row in told["rows"]] == ["pooled", "round-robin", "x"]
    assert [row["regret"] for row in told["rows"]] == [0.0, 1.0, 0.5]
    assert told["rows"][2]["over_bound"] == 2.0
    assert told["rows"][2]["summary"]["tpot"]["mean"] is None
    assert told["plan"]["window"]["end"] is None


def test_in_a_pool_with_roles_the_pooled_policy_is_no_bound() -> None:
    runs = [run("pooled", [result(0, 2.0)]), run("round-robin", [result(0, 3.0)]), run("x", [result(0, 1.0)])]
    plan = Plan(traces=["t"], policies=["pooled", "round-robin", "x"])
    for prefill, known in ((0, True), (1, False)):
        report = make_report(
            msgspec.structs.replace(plan, prefill=prefill, decode=prefill), WORKLOAD, runs, "round-robin"
        )
        for row in report.rows:
            assert (row.over_bound is not None) == (row.regret is not None) == known
            assert row.ttft_ratio is not None
            assert known or row.hit_of_bound is None


def test_the_situation_is_told_in_the_right_number() -> None:
    for engines, seeds, told in ((1, (1,), "1 engine of"), (2, (1, 2), "2 engines of")):
        plan = Plan(traces=["t"], policies=["x"], engines=engines, seeds=seeds)
        report = make_report(plan, WORKLOAD, [run("x", [result(0, 1.0)], seed) for seed in seeds], "x")
        assert report.situation.startswith("1 request in 0 s; " + told)
        assert "; blocks of 512 tokens; " in report.situation
        assert report.situation.endswith(" 1 seed" if engines == 1 else " 2 seeds")
