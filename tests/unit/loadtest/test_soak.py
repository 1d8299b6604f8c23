from __future__ import annotations

import random

import pytest

from loadtest.soak import Sample, fit


def test_the_fit_finds_the_slope_behind_the_warm_up() -> None:
    rng = random.Random(1)
    warm = [Sample(n * 100, 10**7 + n * 10**6) for n in range(25)]
    steady = [Sample(n * 100, int(9e7 + n * 100 * 7 + rng.uniform(-1e4, 1e4))) for n in range(25, 100)]
    found = fit([*warm, *steady])
    assert found is not None
    assert found.slope == pytest.approx(7, abs=1)
    assert found.start == pytest.approx(9e7, rel=0.01)
    assert found.error < 1
    assert found.requests == 7400


def test_too_few_samples_or_no_requests_give_no_fit() -> None:
    assert fit([Sample(1, 1)] * 4) is None
    assert fit([Sample(1, 1), Sample(2, 2)]) is None
