"""The best knobs are found where what a law attains and takes falls along the list, in few runs."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from loadtest.replay.scaling.tuning import Search, climbed, last


class Gave(NamedTuple):
    attained: float
    engine_hours: float


class Pool:
    """Two roles with so many engines as their knobs say; each misses as many requests as it has too few engines."""

    def __init__(self, prefill: int, decode: int) -> None:
        self._needs = (prefill, decode)
        self.ran: set[str] = set()

    def __call__(self, law: str) -> Gave:
        self.ran.add(law)
        counts = [int(part) for part in law.partition("@")[2].split("/")]
        missed = sum(0.004 * max(need - count, 0) for need, count in zip(self._needs, counts, strict=True))
        return Gave(1.0 - missed, float(sum(counts)))


COUNTS = tuple(range(12, 0, -1))


@given(st.integers(0, 40), st.integers(-1, 39))
def test_the_last_place_is_found_by_halving(count: int, place: int) -> None:
    place = min(place, count - 1)
    assert last(count, lambda each: each <= place) == (None if place < 0 else place)


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 39))
def test_a_peak_is_climbed_from_anywhere(count: int, place: int, start: int) -> None:
    place = min(place, count - 1)
    assert climbed(count, min(start, count - 1), lambda each: -abs(each - place)) == place


@given(st.integers(2, 11), st.integers(2, 11))
def test_no_pair_of_knobs_attains_for_less_than_the_one_that_is_found(prefill: int, decode: int) -> None:
    pool = Pool(prefill, decode)
    found = Search(law="static", run=pool, attainment=0.99).apart(COUNTS, COUNTS)
    tried = len(pool.ran)
    attaining = [
        gave.engine_hours for p in COUNTS for d in COUNTS if (gave := pool(f"static@{p}/{d}")).attained >= 0.99
    ]
    assert pool(found).attained >= 0.99
    assert pool(found).engine_hours == min(attaining)
    assert tried <= 16


@given(st.integers(2, 6), st.integers(2, 6), st.integers(6, 14))
def test_no_pair_within_the_budget_attains_more(prefill: int, decode: int, budget: int) -> None:
    pool = Pool(prefill, decode)
    found = Search(law="static", run=pool, attainment=0.99, budget=float(budget)).apart(COUNTS, COUNTS)
    within = [gave for p in COUNTS for d in COUNTS if (gave := pool(f"static@{p}/{d}")).engine_hours <= budget]
    assert pool(found).engine_hours <= budget
    assert pool(found).attained == max(gave.attained for gave in within)


def test_what_nothing_attains_is_shown_at_its_most_generous() -> None:
    search = Search(law="static", run=Pool(40, 40), attainment=0.99)
    assert search.apart(COUNTS, COUNTS) == "static@12/12"
    assert search.apart(COUNTS[::-1], COUNTS[::-1]) == "static@1/1"
