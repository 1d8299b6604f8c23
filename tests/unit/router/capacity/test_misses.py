"""What became of requests is counted over a window, where it tells something of the number of engines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.capacity.demand import Objective
from router.capacity.misses import Misses, met
from router.capacity.plan import Record
from router.observability.events import Outcome
from tests.support.journey import request
from tests.support.observations import ended

STREAM = msgspec.structs.replace(request(), stream=True)
WHOLE = msgspec.structs.replace(request(), stream=False)
OBJECTIVE = Objective(ttft_s=2.0, tpot_s=0.05)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, True),
        ({"itl_s": None}, True),
        ({"ttft_s": 2.1}, False),
        ({"itl_s": 0.06}, False),
        ({"request": WHOLE}, None),
        ({"outcome": Outcome.REFUSED, "status": 503, "ttft_s": None}, False),
        ({"outcome": Outcome.REFUSED, "status": 429, "ttft_s": None}, None),
        ({"outcome": Outcome.CLIENT_GONE, "ttft_s": None, "e2e_s": 9.0}, False),
        ({"outcome": Outcome.CLIENT_GONE, "ttft_s": None, "e2e_s": 0.5}, None),
        ({"outcome": Outcome.CLIENT_GONE, "ttft_s": 0.2, "e2e_s": 9.0}, None),
        ({"outcome": Outcome.CUT}, None),
        ({"outcome": Outcome.CLIENT_ERROR, "status": 400}, None),
    ],
)
def test_a_request_counts_where_engines_would_have_mended_it(changed: dict[str, Any], found: bool | None) -> None:
    assert met(ended(**{"request": STREAM, **changed}), OBJECTIVE) is found


def test_the_window_and_its_last_part_are_told_apart_and_what_is_older_is_forgotten() -> None:
    misses = Misses()
    for at, within in ((0.0, False), (1000.0, True), (1900.0, False), (3500.0, True), (3590.0, False)):
        misses.answered("m", within, at)
    record = misses.record("m", 3600.0, 3600.0)
    assert record == Record(answered=4, missed=2, lately=2, missed_lately=1)
    assert record.attained == 0.5
    assert misses.record("m", 9000.0, 3600.0).attained is None
    assert misses.record("other", 3600.0, 3600.0) == Record()


def test_pools_beyond_the_most_are_not_kept() -> None:
    misses = Misses()
    for number in range(100):
        misses.answered(f"m{number}", True, 0.0)
    assert misses.record("m1", 0.0, 60.0).answered == 1
    assert misses.record("m99", 0.0, 60.0).answered == 0
