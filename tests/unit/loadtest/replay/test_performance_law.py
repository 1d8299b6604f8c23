"""The planner's law of queueing against the simulation that drives the router's own scheduling."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loadtest.replay.results import Slo
from loadtest.replay.workload import Request, Workload, numbered
from loadtest.simulator.settings import find_profile
from router.capacity.demand import Objective, Shape, merged
from router.capacity.performance import Law
from router.core import Role
from tests.support.planning import variant
from tests.support.replay import fleet, member, replayed

SECONDS = 150.0
SLO = Slo(2.0, 0.05)


def chat(rate: float) -> Workload:
    rng, at, blocks = random.Random(1), 0.0, 0
    requests = []
    while (at := at + rng.expovariate(rate)) < SECONDS:
        prompt, output = rng.choice([(1500, 250), (1500, 250), (4000, 200)])
        prompt = max(64, int(prompt * rng.lognormvariate(-0.125, 0.5)))
        output = max(1, int(output * rng.lognormvariate(-0.125, 0.5)))
        size = prompt // 128
        requests.append(Request(number=0, at=at, prompt=prompt, output=output, blocks=range(blocks, blocks + size)))
        blocks += size
    return Workload(name="chat", block_size=128, requests=numbered(requests))


def shapes(load: Workload) -> list[Shape]:
    each = [
        Shape(rate=1 / SECONDS, new_tokens=float(r.prompt), output_tokens=float(r.output)) for r in load.requests[:300]
    ]
    return merged(each, 16)


@pytest.mark.parametrize(
    ("rate", "tolerance"),
    [pytest.param(5.0, 0.01, marks=pytest.mark.slow), (8.0, 0.02), pytest.param(9.5, 0.06, marks=pytest.mark.slow)],
)
def test_attainment_of_aggregated_engines_is_foretold(rate: float, tolerance: float) -> None:
    load = chat(rate)
    profile = find_profile("70b-tp4")
    run = replayed(load, "default", fleet(*(member(f"e{i}", profile=profile) for i in range(4))))
    counted = [result for result in run.results if result.at > 30.0]
    attained = sum(map(SLO.met, counted)) / len(counted)
    law = Law([variant()], Role.BOTH, shapes(load), Objective())
    foretold = float(law.attained(np.full((1, 1), 4.0), np.full((1, 1), rate / 4)).both[0, 0])
    assert foretold == pytest.approx(attained, abs=tolerance)
