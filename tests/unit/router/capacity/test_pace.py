"""The price of a queue follows how many prompts come and how much of the engine they take."""

from __future__ import annotations

import pytest

from router.capacity.pace import Pace


def steady(rate: float, work_s: float, seconds: float = 600.0) -> float:
    pace = Pace()
    for number in range(int(rate * seconds)):
        pace.add(work_s, number / rate)
    return pace.delayed_per_s(seconds)


def test_in_a_steady_state_it_is_half_the_law_of_the_queue() -> None:
    assert steady(1.0, 0.5) == pytest.approx(0.5 * 1.0 / (1.0 - 0.5), rel=0.05)


def test_soon_after_the_first_prompts_it_is_as_large_as_later() -> None:
    assert steady(1.0, 0.5, seconds=10.0) == pytest.approx(steady(1.0, 0.5), rel=0.2)


def test_an_overloaded_engine_has_a_price_all_the_same() -> None:
    assert steady(4.0, 1.0) == pytest.approx(0.5 * 4.0 / 0.2, rel=0.05)


def test_it_is_forgotten() -> None:
    pace = Pace()
    assert pace.delayed_per_s(0.0) == 0.0
    pace.add(1.0, 0.0)
    assert pace.delayed_per_s(1.0) > 50 * pace.delayed_per_s(600.0)
