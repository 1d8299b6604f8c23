from __future__ import annotations

from router.capacity.plan import Key
from router.capacity.startup import Startups
from router.capacity.variants import learnt
from router.core import Role
from tests.support.planning import variant

BIG: Key = (Role.BOTH, "big")


def started(startups: Startups, name: str, asked_at: float, seen_at: float, process: float | None = None) -> None:
    startups.asked("m", {BIG: 2}, {BIG: 1}, asked_at)
    startups.seen("m", {name: (BIG, process)}, seen_at)


def test_a_start_lasts_from_the_order_to_the_first_token() -> None:
    startups = Startups()
    for name, took in (("b", 60.0), ("c", 80.0)):
        started(startups, name, 100.0, 100.0 + took)
        assert startups.of("big") is None
        startups.first_token(name, 3.0)
    assert startups.of("big") == 83.0


def test_an_engine_nobody_asks_is_ready_when_it_is_seen() -> None:
    startups = Startups()
    started(startups, "b", 0.0, 60.0)
    started(startups, "c", 100.0, 160.0)
    startups.seen("m", {}, 200.0)
    assert startups.of("big") == 60.0


def test_engines_that_were_there_or_nobody_ordered_tell_nothing() -> None:
    startups = Startups()
    startups.seen("m", {"a": (BIG, None), "b": (BIG, None)}, 0.0)
    startups.asked("m", {BIG: 3}, {BIG: 2}, 10.0)
    startups.seen("m", {"a": (BIG, None), "b": (BIG, 5.0)}, 20.0)
    startups.seen("m", {"a": (BIG, None), "b": (BIG, 5.0)}, 100.0)
    assert startups.of("big") is None


def test_the_oldest_order_is_met_first_and_orders_taken_back_are_forgotten() -> None:
    startups = Startups()
    startups.asked("m", {BIG: 2}, {BIG: 1}, 0.0)
    startups.asked("m", {BIG: 3}, {BIG: 1}, 50.0)
    startups.asked("m", {BIG: 4}, {BIG: 1}, 55.0)
    startups.asked("m", {BIG: 3}, {BIG: 1}, 58.0)
    startups.seen("m", {"b": (BIG, None), "c": (BIG, None), "d": (BIG, None)}, 100.0)
    for name in "bcd":
        startups.first_token(name, 0.0)
    assert startups.of("big") == 100.0
    startups.first_token("b", 900.0)
    assert startups.of("big") == 100.0


def test_a_new_process_of_a_known_engine_is_a_start() -> None:
    startups = Startups()
    startups.seen("m", {"a": (BIG, 1.0)}, 0.0)
    for begun in (2.0, 3.0):
        startups.asked("m", {BIG: 1}, {}, 100.0)
        startups.seen("m", {"a": (BIG, begun)}, 140.0)
        startups.first_token("a", 1.0)
    assert startups.of("big") == 41.0


def test_of_many_starts_three_of_four_were_no_longer() -> None:
    startups = Startups()
    for number in range(20):
        started(startups, f"e{number}", 0.0, 20.0 + number)
        startups.first_token(f"e{number}", 0.0)
    # The last eight took 32 to 39 seconds.
    assert startups.of("big") == 37.0


def test_an_endpoint_that_is_gone_is_a_new_one_when_it_comes_back() -> None:
    startups = Startups()
    startups.seen("m", {"a": (BIG, None)}, 0.0)
    for _ in range(2):
        startups.forget("a")
        started(startups, "a", 100.0, 130.0)
        startups.first_token("a", 0.0)
    assert startups.of("big") == 30.0


def test_what_is_learnt_takes_the_place_of_what_was_given_within_reason() -> None:
    given = variant(startup_s=90.0)
    assert learnt(given, [], startup_s=40.0).startup_s == 40.0
    assert learnt(given, [], startup_s=4000.0).startup_s == 360.0
    assert learnt(given, [], startup_s=0.0).startup_s == 1.0
    assert learnt(given, []).startup_s == 90.0
