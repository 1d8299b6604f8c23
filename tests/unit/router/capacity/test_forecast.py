from __future__ import annotations

import math
import random

from router.capacity.forecast import Season, falls, fit


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


def test_a_lull_of_seconds_is_not_believed_and_one_of_minutes_is() -> None:
    rng = random.Random(4)
    counts = [*(poisson(rng, 50.0) for _ in range(120)), *(poisson(rng, 10.0) for _ in range(24))]
    assert fit(counts[:124]).ahead(20) > 40.0
    assert 8.0 < fit(counts).ahead(20) < 14.0


def test_a_fall_is_not_drawn_on_to_nothing() -> None:
    rng = random.Random(8)
    counts = [*(poisson(rng, 45.0) for _ in range(96)), *(poisson(rng, 45.0 - 3 * place) for place in range(12))]
    counts += [poisson(rng, 9.0) for _ in range(36)]
    assert all(fit(counts[: 100 + more]).ahead(20) > 4.0 for more in range(0, 44, 3))


def test_what_follows_a_ramp_is_a_new_level_and_not_the_ramp_drawn_on() -> None:
    rng = random.Random(9)
    counts = [*(poisson(rng, 9.0) for _ in range(96)), *(poisson(rng, 9.0 + 3 * place) for place in range(12))]
    counts += [poisson(rng, 45.0) for _ in range(60)]
    assert all(fit(counts[: 112 + more]).ahead(20) < 56.0 for more in range(0, 56, 3))


def test_nothing_seen_expects_nothing() -> None:
    assert fit([]).ahead(10) == 0.0
    assert fit([0.0] * 60).ahead(10) == 0.0


def test_overdispersed_arrivals_are_told_from_poisson_ones() -> None:
    rng = random.Random(5)
    calm = fit([poisson(rng, 20.0) for _ in range(120)])
    wild = fit([poisson(rng, rng.choice([5.0, 35.0])) for _ in range(120)])
    assert calm.dispersion < 1.6 < 4.0 < wild.dispersion


def test_chance_is_no_fall_and_a_fall_is_not_chance() -> None:
    rng = random.Random(6)
    assert not any(falls([poisson(rng, 20.0) for _ in range(120)]) for _ in range(200))
    assert falls([poisson(rng, 30.0 - place / 6) for place in range(120)])
    assert not falls([poisson(rng, 10.0 + place / 6) for place in range(120)])


def test_overdispersed_arrivals_fall_only_beyond_their_own_chance() -> None:
    rng = random.Random(7)
    assert not any(falls([poisson(rng, rng.choice([5.0, 35.0])) for _ in range(120)]) for _ in range(200))


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
