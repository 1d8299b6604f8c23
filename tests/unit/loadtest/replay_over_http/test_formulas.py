"""The field's formulas as plugins of the serving router choose as they do in a replay."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from loadtest.replay.policies.base import Reference
from loadtest.replay_over_http.__main__ import router_settings
from loadtest.replay_over_http.formulas import FORMULAS, POLICIES, create, offer, settings
from router.errors import ConfigError
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.settings import Settings
from tests.support.scheduling import NOW, candidate, ids, prompt, request


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_router_ranks_by_the_formula_as_the_replay_does(formula: str) -> None:
    scheduler = build_scheduler(SchedulingSettings.model_validate(settings(formula)), builtin_registry())
    reference = Reference(FORMULAS[formula])
    rng = random.Random(1)
    for _ in range(50):
        pool = [
            candidate(f"e{n}", matched=rng.randint(0, 4), inflight=1 + n, prefill_tokens=rng.randint(0, 900), waiting=n)
            for n in range(5)
        ]
        chosen = [
            ids(policy.decide(request(), prompt(), pool, now=NOW, rng=random.Random(2)).decode)
            for policy in (scheduler, reference)
        ]
        assert chosen[0] == chosen[1]


@pytest.mark.usefixtures("offered")
def test_who_is_equal_is_chosen_by_chance() -> None:
    scheduler = build_scheduler(SchedulingSettings.model_validate(settings("least-requests")), builtin_registry())
    pool = [candidate(f"e{n}") for n in range(4)]
    rng = random.Random(3)
    firsts = {ids(scheduler.decide(request(), prompt(), pool, now=NOW, rng=rng).decode)[0] for _ in range(60)}
    assert firsts == {"e0", "e1", "e2", "e3"}


def test_a_formula_that_there_is_not_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="formula 'lmetrix' is unknown: it is one of dynamo-w4, least-requests"):
        create({"formula": "lmetrix"})


@pytest.mark.parametrize("policy", POLICIES)
def test_the_routers_configuration_is_one(policy: str) -> None:
    assert Settings(**router_settings(policy)).flow_control.enabled is False
