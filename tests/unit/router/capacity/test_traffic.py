from __future__ import annotations

import random

import pytest

from router.capacity.demand import Qos, Shape, merged
from router.capacity.traffic import OTHERS, Traffic


def fed(traffic: Traffic, rate: float, begin: float, end: float, *, prompt: int = 2000, output: int = 100) -> None:
    rng = random.Random(f"{rate}/{begin}")
    at = begin + rng.expovariate(rate)
    while at < end:
        traffic.arrived("m", Qos.INTERACTIVE, prompt, at)
        traffic.answered("m", Qos.INTERACTIVE, prompt, prompt // 4, output, at)
        at += rng.expovariate(rate)


def test_demand_has_the_rate_and_the_lengths_of_what_came() -> None:
    traffic = Traffic()
    fed(traffic, 5.0, 0.0, 900.0)
    seen = traffic.demand("m", 900.0, 60.0)
    assert seen.rate == pytest.approx(5.0, rel=0.15)
    assert [round(s.new_tokens) for s in seen.shapes] == [1500]
    assert [round(s.cached_tokens) for s in seen.shapes] == [500]
    assert seen.confidence > 0.9


def test_a_shift_of_the_mix_is_followed() -> None:
    traffic = Traffic()
    fed(traffic, 5.0, 0.0, 600.0, prompt=8000, output=50)
    fed(traffic, 5.0, 600.0, 1300.0, prompt=300, output=900)
    seen = traffic.demand("m", 1300.0, 60.0)
    assert seen.rate == pytest.approx(5.0, rel=0.15)
    assert sum(s.rate for s in seen.shapes if s.output_tokens > 500) > 0.95 * seen.rate


def test_qualities_of_service_are_kept_apart() -> None:
    traffic = Traffic()
    for at in range(600):
        traffic.arrived("m", Qos.BATCH, 4000, float(at))
        if at % 2:
            traffic.arrived("m", Qos.INTERACTIVE, 1000, float(at))
    seen = traffic.demand("m", 600.0, 0.0)
    assert seen.rate == pytest.approx(0.5, rel=0.1)
    assert sum(s.rate for s in seen.batch) == pytest.approx(1.0, rel=0.1)


def test_a_forecast_that_keeps_being_wrong_says_so() -> None:
    traffic = Traffic()
    calm, wild = Traffic(), traffic
    for minute in range(60):
        fed(calm, 5.0, minute * 60.0, minute * 60.0 + 60.0)
        fed(wild, 9.0 if minute // 5 % 2 else 1.0, minute * 60.0, minute * 60.0 + 60.0)
        errors = [t.demand("m", minute * 60.0 + 60.0, 120.0).error for t in (calm, wild)]
    assert errors[1] > 2 * errors[0]


def test_memory_is_bounded_by_the_number_of_pools_and_classes() -> None:
    traffic = Traffic()
    for number in range(500):
        traffic.arrived(f"m{number}", Qos.INTERACTIVE, number * 1000, 1.0)
    pools = list(traffic.pools())
    assert len(pools) == 65
    assert OTHERS in pools
    shapes = [Shape(rate=1.0, new_tokens=float(2**n), output_tokens=float(n)) for n in range(4, 18)]
    few = merged(shapes, 5)
    assert len(few) == 5
    assert sum(s.rate * s.new_tokens for s in few) == pytest.approx(sum(s.rate * s.new_tokens for s in shapes))


def test_after_silence_nothing_is_expected() -> None:
    traffic = Traffic()
    fed(traffic, 5.0, 0.0, 300.0)
    assert traffic.demand("m", 2000.0, 60.0).rate == 0.0
    assert traffic.last_arrival("m") == pytest.approx(300.0, abs=3.0)


def test_a_fall_is_told_over_the_time_in_which_it_shows() -> None:
    quick, slow, steady = Traffic(), Traffic(), Traffic()
    for minute in range(120):
        begin, end = minute * 60.0, minute * 60.0 + 60.0
        fed(steady, 5.0, begin, end)
        fed(slow, 6.0 - minute / 60.0, begin, end)
        fed(quick, 5.0 if minute < 112 else 5.0 - (minute - 112) / 2, begin, end)
    seen = [traffic.demand("m", 7200.0, 60.0).falling_s for traffic in (steady, slow, quick)]
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1] >= 1800.0
    assert seen[2] == 600.0
