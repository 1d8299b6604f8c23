"""The law of a bucket: over any time it gives no more than its capacity, its rate, and one overdraft."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.flowcontrol.bucket import Bucket

STEPS = st.lists(st.tuples(st.floats(0, 30), st.floats(0, 50)), max_size=60)


@given(rate=st.floats(0.01, 100), capacity=st.floats(1, 200), steps=STEPS)
def test_no_time_gives_more_than_rate_and_capacity_and_the_last_overdraft(
    rate: float, capacity: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now, given_, last = Bucket(rate, capacity, 0.0), 0.0, 0.0, 0.0
    for pause, units in steps:
        now += pause
        if bucket.level(now) > 0:
            bucket.take(units, now)
            given_ += units
            last = units
            assert given_ - last <= capacity + rate * now + 1e-6
        assert bucket.level(now) <= capacity


@given(rate=st.floats(0.01, 100), debt=st.floats(0, 1000), units=st.floats(0, 1))
def test_after_the_wait_it_is_there(rate: float, debt: float, units: float) -> None:
    bucket = Bucket(rate, 1.0, 0.0)
    bucket.take(debt, 0.0)
    wait_s = bucket.wait_s(units, 0.0)
    assert bucket.full_in_s(0.0) >= wait_s - 1e-9
    assert bucket.level(wait_s) >= units - 1e-6


def test_a_share_fills_it_more_slowly_and_a_clock_that_steps_back_not_at_all() -> None:
    bucket = Bucket(10.0, 100.0, 50.0)
    bucket.take(100, 50.0)
    assert bucket.level(40.0) == 0.0
    assert bucket.level(52.0, share=0.5) == pytest.approx(10.0)
    assert bucket.wait_s(20, 52.0, share=0.25) == pytest.approx(4.0)
