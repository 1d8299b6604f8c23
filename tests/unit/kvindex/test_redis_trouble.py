from __future__ import annotations

import logging

import pytest

from kvindex.redis_trouble import Complaint, StoreUnavailable


def test_a_trouble_is_told_once_a_minute_and_when_its_reason_changes(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 59.0, 60.0, 61.0, 62.0))
    complaint = Complaint(logging.getLogger("test"), "the index is not shared", clock=lambda: next(times))
    for why in ("it is away", "it is away", "it is away", "it is full"):
        complaint.about(StoreUnavailable(why))
    assert [record.getMessage() for record in caplog.records] == [
        "Redis: the index is not shared; it is away",
        "Redis: the index is not shared; it is away",
        "Redis: the index is not shared; it is full",
    ]
    assert complaint.over()
    assert not complaint.over()
    complaint.about(StoreUnavailable("it is full"))
    assert len(caplog.records) == 4


def test_what_nobody_foresaw_is_said_with_where_it_came_from_and_no_oftener(caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint(logging.getLogger("test"), "the index is not shared", clock=lambda: 0.0)
    for _ in range(3):
        try:
            [].pop()
        except IndexError as error:
            complaint.about(error)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "IndexError('pop from empty list')" in record.getMessage()
