from __future__ import annotations

import pytest

from router.api.times import time_allowed_s
from router.errors import InvalidRequest
from router.wire.deadline import DEADLINE, EXPECTED, QUEUE_TTL


def allowed(*fields: tuple[str, str]) -> float | None:
    return time_allowed_s([(name.encode(), value.encode()) for name, value in fields], dict(fields))


@pytest.mark.parametrize("value", ["bogus", "-2s", "0s", "2", "", "2s and more"])
def test_a_time_to_live_that_is_none_is_the_clients_mistake(value: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a duration above 0, like 2s") as refused:
        allowed((QUEUE_TTL, value))
    assert refused.value.param == QUEUE_TTL


@pytest.mark.parametrize(("name", "one", "other"), [(DEADLINE, "5000", "100"), (QUEUE_TTL, "1s", "2s")])
def test_of_two_different_times_none_is_chosen(name: str, one: str, other: str) -> None:
    for values in ((one, other), (other, one)):
        with pytest.raises(InvalidRequest, match="more than once, with different values: send one") as refused:
            allowed(*((name, value) for value in values))
        assert refused.value.param == name
    assert allowed((name, one), (name, one)) == allowed((name, one))


def test_of_what_proxies_say_the_least_counts() -> None:
    assert allowed((EXPECTED, "100"), (EXPECTED, "5000")) == allowed((EXPECTED, "5000"), (EXPECTED, "100")) == 0.1
    assert allowed((EXPECTED, "soon"), (EXPECTED, "0"), (DEADLINE, "3000")) == 3.0
    assert allowed((EXPECTED, "0")) is None


def test_a_time_that_its_sender_may_not_set_is_nobodys_mistake() -> None:
    fields = [(QUEUE_TTL.encode(), b"bogus"), (DEADLINE.encode(), b"1"), (DEADLINE.encode(), b"2")]
    assert time_allowed_s(fields, {}) is None
