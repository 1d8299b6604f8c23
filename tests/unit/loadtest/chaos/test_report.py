from __future__ import annotations

import msgspec

from loadtest.chaos.client import Outcome
from loadtest.chaos.report import Report, table
from loadtest.chaos.watch import Sample, grown

GOOD = Report(
    seconds=120.0,
    clients=300,
    requests=12,
    turned_away=1,
    outcomes={Outcome.COMPLETE: 10, Outcome.CUT: 2},
    faults={"engine killed": 1},
    by_fault={"killed": {Outcome.COMPLETE: 3, Outcome.CUT: 2}},
    longest_s=9.0,
    continued=3,
    grown_bytes={"router0-1": (60.0, 1e6)},
    unsettled=(),
    not_back=(),
    wrong=(),
)


def test_cut_streams_and_restarts_break_no_promise() -> None:
    assert GOOD.broken() == []
    assert table(GOOD).row_count == 2


def test_each_broken_promise_is_said() -> None:
    changed = msgspec.structs.replace(
        GOOD,
        outcomes={Outcome.LOST: 1, Outcome.HIDDEN: 2},
        unsettled=["router0 has one"],
        not_back=["decode0 did not come back"],
        grown_bytes={"router0-1": (60.0, 9e7)},
    )
    assert changed.broken() == [
        "1 requests lost",
        "2 requests cut so that nobody could tell",
        "not back to zero: router0 has one",
        "decode0 did not come back",
        "router0-1 grew by 90 MB in 60 s",
        "nothing was served at all",
    ]


def test_a_run_in_which_no_memory_was_measured_says_so_unless_it_was_a_short_one() -> None:
    unmeasured = msgspec.structs.replace(GOOD, grown_bytes={})
    assert unmeasured.broken() == ["no router lived long enough for its memory to be judged"]
    assert msgspec.structs.replace(unmeasured, seconds=30.0).broken() == []


def test_growth_is_that_of_the_later_half_over_the_earlier_after_the_warm_up() -> None:
    life = [Sample(float(at), 10**8 if at < 20 else 2 * 10**8 + at * 1000) for at in range(0, 100, 2)]
    found = grown(life)
    assert found == (78.0, 40_000.0)
    assert grown(life[:12]) is None
