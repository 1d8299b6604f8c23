from __future__ import annotations

import pytest

from router.core import Role
from router.planning.solver import NoPlan, Solver
from tests.support.planning import demand, view


async def test_a_process_of_its_own_answers_and_remembers_from_one_question_to_the_next() -> None:
    solver = Solver(timeout_s=20.0)
    try:
        first = await solver.plan(0.0, [view(demand(6.0), {(Role.BOTH, "big"): 1})], {})
        assert first.plans[0].total > 1
        assert (await solver.plan(15.0, [view(None, {(Role.BOTH, "big"): 3})], {})).plans[0].reason == "stale"
    finally:
        await solver.aclose()


async def test_no_answer_in_time_is_no_plan_and_the_next_question_gets_another_process() -> None:
    solver = Solver(timeout_s=-29.9, command=("-c", "import time; time.sleep(60)"))
    for _ in range(2):
        with pytest.raises(NoPlan):
            await solver.plan(0.0, [], {})
    await solver.aclose()


async def test_a_process_that_ends_is_no_plan() -> None:
    solver = Solver(timeout_s=5.0, command=("-c", "pass"))
    with pytest.raises(NoPlan):
        await solver.plan(0.0, [], {})
