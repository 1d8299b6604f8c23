from __future__ import annotations

import math
import random

from router.capacity.forecast import Season, fit


def poisson(rng: random.Random, mean: float) -> int:
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def test_noise_is_no_trend() -> None:
    rng = random.Random(1)
    ahead = [fit([poisson(rng, 20.0) for _ in range(120)]).ahead(20) for _ in range(50)]
    assert all(abs(value - 20.0) < 5.0 for value in ahead)


def test_a_trend_is_followed_ahead_of_time() -> None:
    rng = random.Random(2)
    line = fit([poisson(rng, 10.0 + place / 4) for place in range(120)])
    assert abs(line.ahead(20) - 45.0) < 4.0
    assert line.deviation(20) < 5.0


def test_a_jump_is_a_new_level_at_once_and_not_a_steep_trend() -> None:
    rng = random.Random(3)
    line = fit([*(poisson(rng, 10.0) for _ in range(116)), *(poisson(rng, 50.0) for _ in range(4))])
    assert line.jump
    assert 40.0 < line.ahead(20) < 60.0


def test_a_short_lull_is_not_a_jump() -> None:
    rng = random.Random(4)
    assert not fit([*(poisson(rng, 50.0) for _ in range(116)), *(poisson(rng, 10.0) for _ in range(4))]).jump


def test_nothing_seen_expects_nothing() -> None:
    assert fit([]).ahead(10) == 0.0
    assert fit([0.0] * 60).ahead(10) == 0.0


def test_overdispersed_arrivals_are_told_from_poisson_ones() -> None:
    rng = random.Random(5)
    calm = fit([poisson(rng, 20.0) for _ in range(120)])
    wild = fit([poisson(rng, rng.choice([5.0, 35.0])) for _ in range(120)])
    assert calm.dispersion < 1.6 < 4.0 < wild.dispersion


def test_after_a_day_the_season_says_what_comes() -> None:
    season = Season(length_s=2400.0, slots=24)
    for at in range(0, 2400 * 2, 10):
        season.add(float(at), 10.0 + 8.0 * math.sin(2 * math.pi * at / 2400))
    factor = season.factor(4800.0, 600.0)
    assert factor is not None
    assert abs(factor - 1.8) < 0.15


def test_without_a_whole_day_the_season_says_nothing() -> None:
    season = Season(length_s=2400.0, slots=24)
    for at in range(0, 1200, 10):
        season.add(float(at), 10.0)
    assert season.factor(1200.0, 300.0) is None
