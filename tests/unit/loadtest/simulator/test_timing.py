"""Step times follow the formula of the profile."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.settings import load_profiles

PROFILE = load_profiles()["70b-tp4"]


def test_a_prefill_costs_its_tokens_and_their_attention() -> None:
    assert math.isclose(PROFILE.prefill_s(9000, 0), 1.0 + 1.6e-9 * 9000 * 4500)
    assert math.isclose(PROFILE.prefill_s(100, 2000), 100 / 9000 + 1.6e-9 * 100 * 2050)


def test_a_decode_step_costs_its_batch_and_its_context() -> None:
    assert math.isclose(PROFILE.decode_s(8, 40_000), 0.012 + 8 * 5e-5 + 40_000 * 2.7e-8)
    assert PROFILE.decode_s(0, 0) == 0


@given(st.integers(1, 20_000), st.integers(0, 20_000), st.integers(0, 50_000))
def test_a_prefill_costs_the_same_in_one_chunk_or_two(first: int, second: int, context: int) -> None:
    whole = PROFILE.prefill_s(first + second, context)
    parts = PROFILE.prefill_s(first, context) + PROFILE.prefill_s(second, context + first)
    assert math.isclose(whole, parts, rel_tol=1e-9)


def test_a_mixed_step_costs_both_its_parts() -> None:
    both = PROFILE.step_time([(512, 1024)], 4, 9000)
    assert math.isclose(both, PROFILE.prefill_s(512, 1024) + PROFILE.decode_s(4, 9000))
