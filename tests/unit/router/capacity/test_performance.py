from __future__ import annotations

import itertools

import numpy as np
import pytest

from router.capacity.demand import Objective, Shape
from router.capacity.performance import Law
from router.core import Role
from tests.support.planning import CHAT, variant

COUNTS = [1, 2, 4, 8, 16]
ALL = [Role.BOTH, Role.PREFILL, Role.DECODE]


def law(role: Role, *shapes: Shape, objective: Objective | None = None, dispersion: float = 1.0) -> Law:
    return Law([variant()], role, shapes or (CHAT,), objective or Objective(), dispersion=dispersion)


@pytest.mark.parametrize("role", ALL)
def test_an_engine_carries_more_beside_others_but_never_more_than_is_stable(role: Role) -> None:
    found = law(role).capacities(COUNTS, 0.99)
    assert all(np.diff(found.good[0]) >= -1e-6)
    assert (found.good <= found.stable + 1e-9).all()
    assert found.good[0, 0] > 0


@pytest.mark.parametrize("role", ALL)
def test_more_load_never_helps(role: Role) -> None:
    its = law(role)
    top = float(its.capacities([4], 0.5).stable[0, 0])
    shares = [float(its.attained(np.full((1, 1), 4.0), np.full((1, 1), top * x / 20)).both[0, 0]) for x in range(1, 21)]
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(shares))
    assert shares[0] > 0.99


def test_waiting_counts_and_not_only_utilization() -> None:
    """At the same utilization four engines let fewer prompts wait than one."""
    its = law(Role.PREFILL)
    one, four = (float(its.attained(np.full((1, 1), n), np.full((1, 1), 3.0)).ttft[0, 0]) for n in (1.0, 4.0))
    assert four > one


def test_bursts_cost_capacity() -> None:
    smooth, bursty = (law(Role.BOTH, dispersion=d).capacities([4], 0.99).good[0, 0] for d in (1.0, 3.0))
    assert bursty < smooth


def test_what_binds_is_named() -> None:
    strict = Objective(ttft_s=0.5, tpot_s=1.0)
    assert law(Role.BOTH, objective=strict).capacities([4], 0.99).limit[0, 0] == "ttft"
    assert law(Role.BOTH).capacities([4], 0.99).limit[0, 0] == "tpot"
    long = Shape(rate=1.0, new_tokens=6000.0, output_tokens=2000.0)
    loose = Objective(ttft_s=60.0, tpot_s=1.0)
    assert law(Role.DECODE, long, objective=loose).capacities([4], 0.99).limit[0, 0] == "kv"


def test_a_prompt_too_long_for_its_objective_is_known_not_to_be_possible() -> None:
    its = law(Role.BOTH, CHAT, Shape(rate=1.0, new_tokens=60_000.0, output_tokens=100.0))
    assert its.idle() == pytest.approx(0.5, abs=0.01)
