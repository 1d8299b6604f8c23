"""How long blocks lie unused until they are asked for, and so what is pushed out by what is put in a full cache."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.capacity.reuse import Reuse

GONE_S = 2 * 60 * 60.0


def used(
    pauses: Callable[[], float], *, prompts: int, until: float, seed: int = 1, most: int = 1
) -> tuple[Reuse, float]:
    """Prompts of ten blocks of their own, each asked for again after a pause; answers take no time."""
    reuse, rng = Reuse(), random.Random(seed)
    due = sorted((rng.uniform(0.0, 60.0), number, 0) for number in range(prompts))
    now = 0.0
    while due and due[0][0] < until:
        now, number, times = due.pop(0)
        followed = reuse.follow(range(number * 10, number * 10 + 10))
        reuse.take(followed, now)
        reuse.release(followed, now)
        if times < most:
            due.append((now + pauses(), number, times + 1))
            due.sort()
        reuse.pushed(1.0, now)
    return reuse, now


def every(low: float, high: float, seed: int = 2) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.uniform(low, high)


def sometimes(share: float, seed: int = 3) -> Callable[[], float]:
    """That share of them comes again after 40 to 80 s."""
    rng = random.Random(seed)
    return lambda: rng.uniform(40.0, 80.0) if rng.random() < share else GONE_S


def test_nothing_is_pushed_out_while_nobody_ever_came_again() -> None:
    reuse, now = used(every(1.0, 2.0), prompts=200, until=600.0, most=0)
    assert [reuse.pushed(age, now) for age in (0.1, 1.0, 30.0, 1e6)] == [0.0] * 4


def test_most_is_pushed_out_where_blocks_are_evicted_just_when_they_would_be_asked_for() -> None:
    """Everybody comes again after 40 to 80 s."""
    reuse, now = used(every(40.0, 80.0), prompts=100, until=1500.0, most=50)
    young, due, past = (reuse.pushed(age, now) for age in (5.0, 60.0, 600.0))
    assert due > 1.0
    assert young < 0.05
    assert past < 0.05


def test_the_more_come_again_the_dearer_is_their_place() -> None:
    few, now = used(sometimes(0.2), prompts=2000, until=200.0)
    many, then = used(sometimes(0.5), prompts=2000, until=200.0)
    assert 0.0 < 3 * few.pushed(60.0, now) < many.pushed(60.0, then)


def test_what_happened_a_while_ago_counts_less_than_what_happens_now() -> None:
    reuse, now = used(every(40.0, 80.0), prompts=50, until=1000.0, most=50)
    before = reuse.pushed(60.0, now)
    for number in range(5_000, 6_000):
        now += 4.0
        followed = reuse.follow(range(number * 10, number * 10 + 10))
        reuse.take(followed, now)
        reuse.release(followed, now)
        reuse.pushed(60.0, now)
    assert reuse.pushed(60.0, now) < before / 10


def test_blocks_in_use_do_not_age() -> None:
    reuse = Reuse()
    for _ in range(50):
        reuse.take([1], 0.0)
        reuse.take([1], 0.0)
        reuse.release([1], 0.0)
        reuse.take([1], 500.0)
        reuse.release([1], 500.0)
        reuse.release([1], 500.0)
    assert reuse.pushed(400.0, 500.0) == 0.0


def test_memory_is_bounded_and_the_sample_tells_what_all_would() -> None:
    """Nine thousand prompts of ten blocks are more than are followed."""
    sampled, now = used(sometimes(0.5), prompts=9000, until=150.0)
    assert len(sampled.follow(range(90_000))) < 30_000
    whole, then = used(sometimes(0.5), prompts=300, until=150.0)
    assert sampled.pushed(60.0, now) == pytest.approx(whole.pushed(60.0, then), rel=0.4)


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 500.0), st.integers(0, 5), st.booleans()),
        max_size=60,
    ),
    ages=st.lists(st.floats(0.0, 1e7), min_size=1, max_size=5),
)
def test_whatever_happens_what_is_pushed_out_is_no_less_than_nothing_and_has_an_upper_bound(
    steps: list[tuple[float, int, bool]], ages: list[float]
) -> None:
    reuse, now = Reuse(), 0.0
    for pause, number, takes in steps:
        now += pause
        (reuse.take if takes else reuse.release)([number], now)
        assert all(0.0 <= reuse.pushed(age, now) <= 2.25 for age in ages)
