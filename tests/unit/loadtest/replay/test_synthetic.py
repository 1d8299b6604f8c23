from __future__ import annotations

import pytest

from loadtest.replay.plan import Plan, load, run_one
from loadtest.replay.results import Slo, Window, summarize
from loadtest.replay.synthetic import KINDS, make
from router.observability.events import Outcome


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_workload_is_the_same_every_time_and_within_what_engines_take(kind: str) -> None:
    workload = make(kind)
    assert workload == make(kind)
    assert len(workload.requests) > 1000
    assert all(request.prompt // workload.block_size == len(request.blocks) for request in workload.requests)
    assert [request.number for request in workload.requests] == list(range(len(workload.requests)))
    assert all(a.at <= b.at for a, b in zip(workload.requests, workload.requests[1:], strict=False))


def test_each_shares_what_its_name_says() -> None:
    firsts = {kind: [request.blocks[0] for request in make(kind).requests] for kind in KINDS}
    assert len(set(firsts["shared-prompt"])) == 1
    assert len(set(firsts["unique"])) == len(firsts["unique"])
    assert len(set(firsts["hot-document"])) == pytest.approx(0.5 * len(firsts["hot-document"]), rel=0.1)
    assert make("agents").closed


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_eight_engines_carry_it_and_round_robin_is_no_better_and_worse_where_placing_matters(kind: str) -> None:
    plan = Plan(traces=[f"synthetic:{kind}"], policies=[], limit=500)
    means = {}
    for policy in ("lmetric", "round-robin"):
        run = run_one(plan, load(plan), policy, 1)
        assert all(result.outcome is Outcome.OK for result in run.results)
        means[policy] = summarize(run, [Slo(2, 0.05)], Window()).ttft.mean
    assert means["lmetric"] < (0.8 if kind == "agents" else 1.0) * means["round-robin"]
