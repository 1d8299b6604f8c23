from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadtest.replay.scaling.base import LAWS, Gauge, Given, Sample, Seen
from loadtest.replay.scaling.catalogue import MAKERS, make_law
from loadtest.replay.scaling.references import Hpa, KedaSlo, Kpa, Wva
from loadtest.simulator.settings import find_profile
from router.core import Role
from router.errors import ConfigError

GIVEN = Given(roles=[Role.BOTH], ttft_s=2.0, tpot_s=0.05, startup_s=90.0, requests=[])


def at(value: float) -> dict[Role, float]:
    return {Role.BOTH: value}


def seen(now: float, engines: int, *, running: int = 0, kv: float = 0.0, waiting: int = 0, **more: Any) -> Seen:
    one = Gauge(role=Role.BOTH, running=running, waiting=waiting, kv_usage=kv, prefill_tokens=0)
    fields = {"starting": {}, "samples": [], "arrived": 0, "prompt_tokens": 0, "output_tokens": 0, **more}
    return Seen(now=now, engines=[one] * engines, **fields)


def test_hpa_grows_at_once_and_shrinks_after_five_minutes() -> None:
    law = Hpa(GIVEN, at(10.0), "concurrency")
    assert law.desired(seen(0.0, 2, running=20))[Role.BOTH] == 4
    assert law.desired(seen(15.0, 4, running=10))[Role.BOTH] == 4
    assert law.desired(seen(30.0, 4, running=2))[Role.BOTH] == 4
    assert law.desired(seen(400.0, 4, running=2))[Role.BOTH] == 1


def test_hpa_leaves_alone_what_is_within_its_tolerance() -> None:
    assert Hpa(GIVEN, at(10.0), "concurrency").desired(seen(0.0, 4, running=10))[Role.BOTH] == 4


def test_hpa_does_not_order_twice_what_is_starting() -> None:
    law = Hpa(GIVEN, at(10.0), "concurrency")
    assert law.desired(seen(0.0, 2, running=20, starting={Role.BOTH: 2}))[Role.BOTH] == 4


def test_kpa_panics_at_twice_the_load_and_takes_nothing_away_meanwhile() -> None:
    law = Kpa(GIVEN, at(10.0))
    for step in range(40):
        law.desired(seen(5.0 * step, 2, running=10))
    panicked = [law.desired(seen(200.0 + 5.0 * step, 2, running=60))[Role.BOTH] for step in range(8)]
    assert panicked[-1] >= 6
    assert law.desired(seen(245.0, 2, running=0))[Role.BOTH] >= panicked[-1]


def test_keda_follows_the_worse_of_both_objectives_between_its_bounds() -> None:
    def wanted(ttft: float, tpot: float) -> int:
        samples = [Sample(0.0, ttft, tpot)] * 20
        return KedaSlo(GIVEN, at(1.0)).desired(seen(0.0, 4, samples=samples))[Role.BOTH]

    assert wanted(0.1, 0.024) == 4
    assert wanted(0.1, 0.045) == 7
    assert wanted(1.8, 0.010) == 7
    assert wanted(0.1, 0.005) <= 4


def test_wva_takes_one_more_when_too_little_is_spare_and_one_less_when_the_rest_would_do() -> None:
    law = Wva(GIVEN, at(0.1))
    assert law.desired(seen(0.0, 3, kv=0.75))[Role.BOTH] == 4
    assert law.desired(seen(0.0, 3, kv=0.1))[Role.BOTH] == 2
    assert law.desired(seen(0.0, 3, kv=0.5))[Role.BOTH] == 3
    assert law.desired(seen(0.0, 3, kv=0.9))[Role.BOTH] == 4


def test_every_name_makes_a_law_and_a_wrong_one_says_what_was_meant() -> None:
    profile = find_profile("70b-tp4")
    assert set(LAWS) == set(MAKERS)
    for name in LAWS:
        assert make_law(name, GIVEN, profile).interval_s > 0
    with pytest.raises(ConfigError, match="did you mean hpa-kv"):
        make_law("hpa-kw", GIVEN, profile)
    apart = msgspec.structs.replace(GIVEN, roles=[Role.PREFILL, Role.DECODE])
    assert make_law("static@2/5", apart, profile).desired(seen(0.0, 0)) == {Role.PREFILL: 2, Role.DECODE: 5}
    with pytest.raises(ConfigError, match="no number"):
        make_law("static@2/5", GIVEN, profile)
    with pytest.raises(ConfigError, match="no number"):
        make_law("static@many", GIVEN, profile)


@pytest.mark.parametrize("name", ["static@0", "static@0.5", "llm-d-keda@0", "planner@1", "planner-bursts@0.5"])
def test_a_knob_without_a_sense_is_refused_with_one_that_has(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: .*, like|{name}: .*something like"):
        make_law(name, GIVEN, find_profile("70b-tp4"))
