from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.core import Role
from router.planning.child import LACKS
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


async def test_what_the_solver_lacks_is_said_with_the_mend() -> None:
    solver = Solver(timeout_s=20.0, command=("-c", f"import sys; sys.exit({LACKS})"))
    with pytest.raises(NoPlan, match=r"pip install 'kvrouter\[planner\]'"):
        await solver.plan(0.0, [], {})


def test_the_process_says_that_it_lacks_something_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("raise ModuleNotFoundError('none', name='scipy')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "router.planning.child"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (LACKS, b"")
