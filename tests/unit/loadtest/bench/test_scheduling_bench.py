import random

import pytest

from loadtest.bench.scheduling_bench import SETTINGS, candidates, decision
from router.core import Role
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_measured_is_a_whole_decision(name: str) -> None:
    scheduler = build_scheduler(SETTINGS[name], builtin_registry())
    decided = decision(scheduler, candidates(8, (Role.PREFILL, Role.DECODE), random.Random(1)))()
    assert len(decided.decode) == 4
    assert decided.reason.startswith("pd")
