"""A law is found from its samples, through noise, pauses and change."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.rls import Rls

PRIOR = (0.005, 1 / 5000, 1.5e-9)


def sample(rng: random.Random, law: tuple[float, ...], noise: float = 0.0) -> tuple[tuple[float, ...], float]:
    tokens = rng.randint(50, 20_000)
    x = (1.0, float(tokens), tokens * rng.randint(0, 50_000) + tokens**2 / 2)
    return x, sum(a * b for a, b in zip(x, law, strict=True)) * (1 + rng.gauss(0, noise))


@settings(deadline=None)
@given(rate=st.floats(500, 60_000), pair=st.floats(0, 5e-9), overhead=st.floats(0, 0.02), seed=st.integers(0, 2**32))
def test_any_plausible_law_is_found_to_a_few_percent(rate: float, pair: float, overhead: float, seed: int) -> None:
    rng, law = random.Random(seed), (overhead, 1 / rate, pair)
    rls = Rls(PRIOR)
    for _ in range(150):
        rls.update(*sample(rng, law, 0.02))
    errors = []
    for _ in range(40):
        x, y = sample(rng, law)
        errors.append(abs(rls.predict(x) / y - 1))
    assert sum(errors) / len(errors) < 0.06


def test_confidence_comes_with_samples() -> None:
    rng, rls = random.Random(1), Rls(PRIOR)
    x = (1.0, 2000.0, 4e6)
    seen = [rls.confidence(x)]
    for _ in range(40):
        rls.update(*sample(rng, (0.0, 1 / 9000, 1.6e-9), 0.05))
        seen.append(rls.confidence(x))
    assert seen[0] == 0.0
    assert seen[40] > 0.7 > seen[1]


def test_a_pause_of_the_engine_moves_nothing() -> None:
    rng, law = random.Random(2), (0.002, 1 / 9000, 1.6e-9)
    rls = Rls(PRIOR)
    for _ in range(100):
        rls.update(*sample(rng, law, 0.03))
    x = (1.0, 4000.0, 8e6)
    before = rls.predict(x)
    rls.update(x, 30.0)
    assert rls.predict(x) == pytest.approx(before, rel=0.05)


def test_an_engine_that_changes_its_speed_is_followed() -> None:
    rng = random.Random(3)
    rls = Rls(PRIOR)
    for rate in (9000, 3000):
        for _ in range(300):
            rls.update(*sample(rng, (0.0, 1 / rate, 1.6e-9), 0.03))
    x, y = sample(rng, (0.0, 1 / 3000, 1.6e-9))
    assert rls.predict(x) == pytest.approx(y, rel=0.1)


def test_what_no_sample_speaks_of_keeps_its_prior_however_long() -> None:
    rls = Rls((0.01, 1e-4))
    for _ in range(2000):
        rls.update((1.0, 0.0), 0.02)
    assert rls.theta[0] == pytest.approx(0.02, rel=0.02)
    assert rls.theta[1] == pytest.approx(1e-4)
    assert rls.uncertainty((0.0, 1.0)) <= 1.5001


def test_coefficients_stay_at_zero_or_above() -> None:
    rng, rls = random.Random(4), Rls(PRIOR)
    for _ in range(200):
        tokens = rng.randint(1, 1000)
        rls.update((1.0, tokens, tokens**2 / 2), 0.001)
        assert min(rls.theta) >= 0.0


def test_thousands_of_samples_in_one_direction_leave_it_able_to_learn() -> None:
    """Rounding may make a covariance lopsided and then negative; the law lives on."""
    for seed in range(4):
        rng = random.Random(seed)
        law = Rls((0.012, 5e-5, 3e-8), spread=(1.5, 0.3, 0.3), floor=0.002)
        for _ in range(6000):
            batch = rng.choice([1, 1, 1, 2, 30])
            x = (1.0, batch, batch * rng.choice([2000.0, 2000.0, 1999.9]))
            law.update(x, (0.012 + 5e-5 * x[1] + 2.7e-8 * x[2]) * (1 + 1e-4 * rng.gauss(0, 1)))
        assert law.predict((1.0, 10.0, 20_000.0)) == pytest.approx(0.01304, rel=0.02)
