"""Report: what all runs of a plan come to, policy by policy, as one value; JSON and tables are made of it. PURE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadtest.replay.compare import Ratio, e2e, ratio, regret, ttft
from loadtest.replay.plan import Plan
from loadtest.replay.results import Run, Spread, Summary, summarize
from loadtest.replay.words import how_many
from loadtest.replay.workload import Workload
from router.observability.events import Outcome

BOUND, WORST = "pooled", "round-robin"

FAILURES = {
    Outcome.CLIENT_ERROR: "longer than the KV space",
    Outcome.CUT: "cut off, the engine died",
    Outcome.UPSTREAM_ERROR: "no engine left to ask",
    Outcome.REFUSED: "no engine to choose",
}
"""Why a request of a replay was not answered to its end, for people."""


def failure(outcome: str) -> str:
    return FAILURES.get(Outcome(outcome), outcome)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: means over seeds."""

    policy: str
    summary: Summary
    ttft_ratio: Ratio | None
    """Mean TTFT over the base's."""
    e2e_ratio: Ratio | None
    regret: float | None
    """In mean TTFT, where the pooled bound and round robin were replayed too. None, as all that is measured by the
    bound, with prefill and decode engines: it is none there."""
    over_bound: float | None
    """Mean TTFT over the pooled bound's."""
    hit_of_bound: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    situation: str
    """What was replayed on what, for people."""
    requests: int
    base: str
    rows: Sequence[Row]
    plan: Plan


def make_report(plan: Plan, workload: Workload, runs: Sequence[Run], base: str) -> Report:
    """`base`: the policy that the others are compared with."""
    by_policy = {policy: [run for run in runs if run.policy == policy] for policy in plan.policies}
    means = {
        policy: _mean([summarize(run, plan.slos, plan.window) for run in own]) for policy, own in by_policy.items()
    }
    # With engines in roles it hands every prompt over, which is not always best: no bound for who may do otherwise.
    bound = None if plan.prefill else means.get(BOUND)
    worst = means.get(WORST)
    rows = []
    for policy, own in by_policy.items():
        mean = means[policy]
        rows.append(
            Row(
                policy=policy,
                summary=mean,
                ttft_ratio=ratio(own, by_policy[base], ttft, plan.window),
                e2e_ratio=ratio(own, by_policy[base], e2e, plan.window),
                regret=regret(mean.ttft.mean, bound.ttft.mean, worst.ttft.mean) if bound and worst else None,
                over_bound=mean.ttft.mean / bound.ttft.mean if bound else None,
                hit_of_bound=mean.hit_rate / bound.hit_rate if bound and bound.hit_rate else None,
            )
        )
    return Report(
        title=workload.name,
        situation=_situation(plan, workload.block_size, runs, rows[0].summary.requests),
        requests=len(runs[0].results),
        base=base,
        rows=rows,
        plan=plan,
    )


def _situation(plan: Plan, block_size: int, runs: Sequence[Run], counting: int) -> str:
    results = runs[0].results
    span_s = max(result.at for result in results) - min(result.at for result in results)
    told = f"{how_many(len(results), 'request')} in {span_s:.4g} s"
    if plan.speed != 1.0:
        told += f" ({plan.speed:g} times the trace's rate)"
    if counting != len(results):
        told += f", of which {counting} count"
    engines = how_many(plan.engines, "engine")
    if plan.prefill:
        engines = f"{plan.prefill} prefill and {how_many(plan.decode, 'decode engine')}"
    blocks = f"blocks of {how_many(block_size, 'token')}"
    return f"{told}; {engines} of {', '.join(plan.profiles)}; {blocks}; {how_many(len(plan.seeds), 'seed')}"


def as_json(report: Report) -> bytes:
    """Unknown and infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(_finite(msgspec.to_builtins(report))), indent=1) + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mean(summaries: Sequence[Summary]) -> Summary:
    """Over seeds, number by number."""
    first, count = summaries[0], len(summaries)
    errors = [s.prediction_error for s in summaries if s.prediction_error is not None]
    over = [s.over_clairvoyant for s in summaries if s.over_clairvoyant is not None]

    def total(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return {
            name: sum(each.get(name, 0) for each in counts) for name in sorted({n for each in counts for n in each})
        }

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / count

    def spread(spreads: Sequence[Spread]) -> Spread:
        return Spread(
            mean=mean([s.mean for s in spreads]),
            p50=mean([s.p50 for s in spreads]),
            p90=mean([s.p90 for s in spreads]),
            p99=mean([s.p99 for s in spreads]),
        )

    return Summary(
        requests=round(mean([s.requests for s in summaries])),
        failed=sum(s.failed for s in summaries),
        failures=total([s.failures for s in summaries]),
        ttft=spread([s.ttft for s in summaries]),
        tpot=spread([s.tpot for s in summaries]),
        e2e=spread([s.e2e for s in summaries]),
        goodput=[mean([s.goodput[i] for s in summaries]) for i in range(len(first.goodput))],
        hit_rate=mean([s.hit_rate for s in summaries]),
        prefilled=round(mean([s.prefilled for s in summaries])),
        load_spread=mean([s.load_spread for s in summaries]),
        busy_spread=mean([s.busy_spread for s in summaries]),
        preempted=round(mean([s.preempted for s in summaries])),
        reasons=total([s.reasons for s in summaries]),
        prediction_error=mean(errors) if len(errors) == count else None,
        over_clairvoyant=mean(over) if len(over) == count else None,
        decisions_per_s=mean([s.decisions_per_s for s in summaries]),
        requests_per_s=mean([s.requests_per_s for s in summaries]),
    )
