from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.replay.workload import arriving_from, faster, jittered, merged, with_answers, with_sessions
from tests.support.replay import SIZE, ask, workload


@given(ticks=st.lists(st.integers(0, 20), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_arrivals_are_spread_within_their_tick_and_never_change_places_between_ticks(
    ticks: list[int], seed: int
) -> None:
    times = [3.0 * tick for tick in sorted(ticks)]
    requests = [ask(n, at, []) for n, at in enumerate(times)]
    spread = jittered(requests, random.Random(seed))
    assert [request.number for request in spread] == list(range(len(times)))
    assert [request.at for request in spread] == sorted(request.at for request in spread)
    for before, after in zip(requests, spread, strict=True):
        later = [at for at in times if at > before.at]
        assert before.at <= after.at <= min([before.at + 5.0, *later[:1]])


def test_another_seed_is_another_jitter_and_the_same_seed_the_same() -> None:
    requests = [ask(n, 3.0 * (n // 5), []) for n in range(30)]
    first, again, other = (jittered(requests, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_twice_the_speed_is_half_the_time_between_arrivals_and_turns() -> None:
    (request,) = faster([ask(0, 10.0, [], session=1, think=4.0)], 2.0)
    assert (request.at, request.think) == (5.0, 2.0)


def test_what_is_left_out_takes_the_turns_with_it_that_wait_for_it() -> None:
    requests = [
        ask(0, 1.0, [], session=1),
        ask(1, 1.0, [], session=1, think=2.0),
        ask(2, 2.0, [], session=2),
        ask(3, 3.0, [], session=2),
        ask(4, 3.0, [], session=2, think=1.0),
        ask(5, 1.0, [], session=1, think=9.0),
        ask(6, 4.0, []),
    ]
    assert [request.number for request in arriving_from(requests, 3.0)] == [3, 4, 6]
    assert arriving_from(requests, 0.0) == requests


def test_a_request_that_continues_anothers_prompt_is_of_its_session() -> None:
    requests = [
        ask(0, 0, [0, 1, 2]),
        ask(1, 1, [0, 9, 10]),
        ask(2, 2, [0, 1, 2, 3, 4]),
        ask(3, 3, [0, 9, 11]),
        ask(4, 4, [0, 1, 2, 3, 4, 5]),
        ask(5, 5, [0]),
        ask(6, 6, [0, 20]),
    ]
    assert [request.session for request in with_sessions(requests)] == [0, 1, 0, 2, 0, 3, 4]


def test_an_answers_blocks_are_those_that_the_next_turn_shows_and_else_its_own() -> None:
    turns = [
        ask(0, 0, [0, 1], tail=1, output=2 * SIZE, session=1),
        ask(1, 1, [0, 1, 7, 8, 9], session=1, output=SIZE + 1),
        ask(2, 2, [5], session=2, output=3),
    ]
    first, second, third = with_answers(turns, SIZE)
    assert list(first.answer_blocks) == [7, 8]
    assert len(second.answer_blocks) == 1
    assert set(second.answer_blocks).isdisjoint({0, 1, 5, 7, 8, 9})
    assert list(third.answer_blocks) == []


def test_workloads_at_the_same_time_share_neither_blocks_nor_sessions() -> None:
    one = workload(ask(0, 0.0, [0, 1], session=0), ask(1, 2.0, [0, 1, 2], session=0))
    two = workload(ask(0, 1.0, [0, 1], session=0))
    both = merged("both", [one, two])
    assert [request.at for request in both.requests] == [0.0, 1.0, 2.0]
    assert [request.number for request in both.requests] == [0, 1, 2]
    assert set(both.requests[1].blocks).isdisjoint(both.requests[2].blocks)
    assert both.requests[1].session != both.requests[2].session
    with pytest.raises(ValueError, match="blocks of 16, 32 tokens"):
        merged("x", [one, msgspec.structs.replace(two, block_size=32)])
