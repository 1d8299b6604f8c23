"""What the default policy does where engines differ, die, join, or are not what they were taken for."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

import pytest

from loadtest.replay.plan import Plan, load, run_one
from loadtest.replay.results import Result, Run


def plan(**asked: Any) -> Plan:
    return Plan(traces=["synthetic:unique"], policies=["default"], **({"limit": 700} | asked))


def settled(run: Run, after: int = 150) -> list[Result]:
    """Those after the first so many, which teach."""
    return [result for result in run.results if result.number >= after and result.ttft_s is not None]


def replay(**asked: Any) -> list[Result]:
    return settled(run_one(plan(**asked), load(plan(**asked)), "default", 1))


def mean_ttft(results: list[Result]) -> float:
    return fmean(result.ttft_s or 0.0 for result in results)


def test_nobody_queues_behind_an_engine_at_a_third_of_the_speed_and_a_crowd_uses_it() -> None:
    """What its speed deserves: 1 of 22. Below saturation the others can do everything sooner."""
    calm = replay(slow={"e2": 0.33})
    assert Counter(result.endpoint for result in calm)["e2"] <= len(calm) / 22
    crowded = replay(slow={"e2": 0.33}, speed=2.0, limit=1200)
    theirs = [result for result in crowded if result.endpoint == "e2"]
    assert 0.5 / 22 <= len(theirs) / len(crowded) <= 2.5 / 22
    assert mean_ttft(theirs) <= mean_ttft(crowded)


def test_an_engine_that_dies_leaves_no_pile_and_one_that_joins_cold_draws_none() -> None:
    results = replay(deaths=((30.0, "e1"),), joins=(45.0,))
    late = [result for result in results if result.at > 50.0]
    counts = Counter(result.endpoint for result in late)
    assert "e1" not in counts
    assert max(counts.values()) <= 1.3 * len(late) / len(counts)
    assert mean_ttft([result for result in late if result.endpoint == "e8"]) <= 1.3 * mean_ttft(late)


@pytest.mark.parametrize("speed", [5000 / 9000 / 2, 5000 / 9000 * 2])
def test_engines_half_and_twice_as_fast_as_the_prior_are_known_after_300_requests(speed: float) -> None:
    """Within 5 % of a router that was told the truth. The prior is 5,000 tokens/s."""
    asked = plan(slow={f"e{number}": speed for number in range(8)}, speed=speed, limit=800)
    untold, told = (run_one(asked, load(asked), policy, 1) for policy in ("default", "default-told"))
    assert mean_ttft(settled(untold, after=300)) <= 1.05 * mean_ttft(settled(told, after=300))
