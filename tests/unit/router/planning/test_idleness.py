from __future__ import annotations

from router.planning.idleness import Idleness


def test_idle_counts_from_the_first_sight_of_a_pool_nobody_has_asked_for() -> None:
    idle = Idleness()
    idle.looked("m", False, 100.0)
    assert idle.of("m", 103.0, None) == 3.0


def test_what_is_in_flight_is_no_quiet_however_long_ago_it_came() -> None:
    idle = Idleness()
    for at in (100.0, 200.0, 300.0):
        idle.looked("m", True, at)
    idle.looked("m", False, 301.0)
    assert idle.of("m", 305.0, 200.0) == 5.0


def test_a_request_too_short_to_be_seen_in_flight_counts_from_its_arrival() -> None:
    idle = Idleness()
    idle.looked("m", False, 100.0)
    assert idle.of("m", 130.0, 7.0) == 7.0


def test_a_pool_that_is_gone_is_seen_for_the_first_time_again() -> None:
    idle = Idleness()
    idle.looked("m", False, 100.0)
    idle.kept(["other"])
    idle.looked("m", False, 200.0)
    assert idle.of("m", 201.0, None) == 1.0
