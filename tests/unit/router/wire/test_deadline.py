from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.wire.deadline import DEADLINE, EXPECTED, QUEUE_TTL, allowed_s, duration_s, queue_ttl_s


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({}, None),
        ({DEADLINE: "1500"}, 1.5),
        ({DEADLINE: " 0.5 "}, 0.0005),
        ({EXPECTED: "15000"}, 15.0),
        ({DEADLINE: "2000", EXPECTED: "15000"}, 2.0),
        ({DEADLINE: "20000", EXPECTED: "15000"}, 15.0),
        ({EXPECTED: "0"}, None),
        ({EXPECTED: "soon"}, None),
        ({DEADLINE: "999999999999"}, 1e7),
    ],
)
def test_the_least_of_what_is_said_counts(said: dict[str, str], seconds: float | None) -> None:
    assert allowed_s(said) == seconds


@pytest.mark.parametrize("value", ["", "0", "-1", "soon", "1s", "1e3", "inf", "nan", "٣"])
def test_a_deadline_that_is_none_is_the_clients_mistake(value: str) -> None:
    with pytest.raises(InvalidRequest, match="milliseconds above 0"):
        allowed_s({DEADLINE: value})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("250ms", 0.25),
        ("1m30s", 90.0),
        ("1h0.5s", 3600.5),
        ("1.5h", 5400.0),
        ("", None),
        ("0s", None),
        ("-2s", None),
        ("2", None),
        ("2 s", None),
        ("2s and more", None),
    ],
)
def test_a_time_to_live_is_a_go_duration(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds
    assert queue_ttl_s({QUEUE_TTL: text}) == seconds


@given(st.text(max_size=40))
def test_no_text_makes_a_duration_that_is_not_above_zero(text: str) -> None:
    seconds = duration_s(text)
    assert seconds is None or seconds > 0
