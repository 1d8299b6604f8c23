"""Plots come to an end whatever their values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pygal = pytest.importorskip("pygal")
charts = pytest.importorskip("loadtest.replay.charts")


@given(
    st.floats(1e-9, 1e9) | st.floats(-1e9, -1e-9),
    st.integers(1, 1_000_000),
    st.integers(1, 1_000_000),
)
def test_values_that_differ_in_their_last_bits_are_drawn(value: float, x_bits: int, y_bits: int) -> None:
    chart = charts.new_chart(pygal.XY, "times")
    charts.add_line(chart, "one", [(value, value), (value * (1 + x_bits * 2**-52), value * (1 + y_bits * 2**-52))])
    assert "<svg" in charts.svg(chart)
