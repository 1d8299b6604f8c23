"""What every BlockIndex keeps to, checked on each implementation."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvindex import BlockIndex, Match, MemoryIndex, Mode, Tier
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from loadtest.redis_server import RedisServer
from tests.support.kvindex import Clock, NaiveIndex

A, B = "10.0.0.1:8000", "10.0.0.2:8000/1"
CHAIN = [11, 22, 33, 44, 55, 66, 77, 88]

Make = Callable[[Clock], BlockIndex]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes indexes; those in Redis share through a real server from the first operation on."""
    shared: list[RedisIndex] = []
    if request.param == "memory":
        yield MemoryIndex
        return
    server: RedisServer = request.getfixturevalue("server")

    def make_shared(clock: Clock) -> BlockIndex:
        namespace = secrets.token_hex(4)
        index = RedisIndex(
            MemoryIndex(clock), lambda: RedisStore(RedisLink(server.url), namespace=namespace), router=namespace
        )
        shared.append(index)
        return shared[-1]

    yield make_shared
    for index in shared:
        await index.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def index(make: Make, clock: Clock) -> BlockIndex:
    index = make(clock)
    if isinstance(index, RedisIndex):
        await index.start()
        await index.synchronized()
    return index


def test_an_empty_index_and_an_empty_chain_match_nothing(index: BlockIndex) -> None:
    assert index.match(CHAIN) == {}
    index.store(A, CHAIN, Tier.DEVICE)
    assert index.match([]) == {}


def test_the_leading_run_of_each_endpoint_is_reported(index: BlockIndex) -> None:
    index.store(A, CHAIN[:3], Tier.DEVICE)
    index.store(B, CHAIN, Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(3, 3), B: Match(8, 8)}
    assert index.match(CHAIN[:2]) == {A: Match(2, 2), B: Match(2, 2)}


def test_a_hole_ends_the_run_although_later_blocks_are_held(index: BlockIndex) -> None:
    index.store(A, CHAIN, Tier.DEVICE)
    index.remove(A, [CHAIN[4]], Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(4, 4)}
    index.store(A, [CHAIN[4]], Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(8, 8)}


def test_an_endpoint_without_the_first_block_is_absent(index: BlockIndex) -> None:
    index.store(A, CHAIN[1:], Tier.DEVICE)
    assert index.match(CHAIN) == {}


def test_blocks_in_farther_tiers_count_but_not_as_device(index: BlockIndex) -> None:
    index.store(A, CHAIN[:2], Tier.DEVICE)
    index.store(A, CHAIN[1:4], Tier.HOST)
    index.store(A, CHAIN[4:6], Tier.STORAGE)
    assert index.match(CHAIN) == {A: Match(6, 2)}
    index.store(B, CHAIN[:5], Tier.HOST)
    assert index.match(CHAIN) == {A: Match(6, 2), B: Match(5, 0)}


def test_removing_from_one_tier_leaves_the_others(index: BlockIndex) -> None:
    for tier in Tier:
        index.store(A, CHAIN, tier)
    index.remove(A, CHAIN, Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(8, 0)}
    index.remove(A, CHAIN, Tier.STORAGE)
    assert index.match(CHAIN) == {A: Match(8, 0)}
    index.remove(A, CHAIN[2:], Tier.HOST)
    assert index.match(CHAIN) == {A: Match(2, 0)}


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("kept", [1, 8])
def test_clearing_a_tier_leaves_the_others(index: BlockIndex, tier: Tier, kept: int) -> None:
    others = [each for each in Tier if each is not tier]
    index.store(A, CHAIN, tier)
    for each in others:
        index.store(A, CHAIN[:kept], each)
    index.store(B, CHAIN, tier)
    index.clear(A, tier)
    assert index.match(CHAIN) == {
        A: Match(kept, 0 if tier is Tier.DEVICE else kept),
        B: Match(8, 8 if tier is Tier.DEVICE else 0),
    }


def test_clearing_everything_forgets_speculation_too(index: BlockIndex) -> None:
    index.set_mode(A, Mode.EXACT)
    index.store(A, CHAIN[:2], Tier.HOST)
    index.speculate(A, CHAIN, 60.0)
    index.clear(A, None)
    assert index.match(CHAIN) == {}
    assert index.mode(A) is Mode.EXACT


def test_a_dropped_endpoint_is_gone_and_its_place_is_clean_for_the_next(index: BlockIndex) -> None:
    index.set_mode(A, Mode.EXACT)
    index.store(A, CHAIN, Tier.DEVICE)
    index.drop(A)
    assert index.match(CHAIN) == {}
    assert A not in index.stats().blocks
    assert index.mode(A) is Mode.APPROXIMATE
    for _ in range(3):
        index.expire()
    index.store(B, CHAIN[:1], Tier.DEVICE)
    assert index.match(CHAIN) == {B: Match(1, 1)}
    assert index.stats().keys == 1
    assert index.stats().sweeping == 0


def test_an_unknown_endpoint_can_be_removed_from_cleared_and_dropped(index: BlockIndex) -> None:
    index.remove("nobody", CHAIN, Tier.DEVICE)
    index.clear("nobody", None)
    index.clear("nobody", Tier.HOST)
    index.drop("nobody")
    assert index.match(CHAIN) == {}


def test_speculation_counts_as_device_until_its_time_is_over(index: BlockIndex, clock: Clock) -> None:
    index.set_mode(A, Mode.EXACT)
    index.speculate(A, CHAIN[:4], 2.0)
    assert index.match(CHAIN) == {A: Match(4, 4)}
    clock.now += 1.0
    index.speculate(A, CHAIN[:2], 2.0)
    clock.now += 1.5
    index.expire()
    assert index.match(CHAIN) == {A: Match(2, 2)}
    clock.now += 1.0
    index.expire()
    assert index.match(CHAIN) == {}
    assert index.stats().speculative == 0
    assert index.stats().keys == 0


def test_a_stored_event_confirms_speculation_and_then_the_engine_is_believed(index: BlockIndex) -> None:
    index.set_mode(A, Mode.EXACT)
    index.speculate(A, CHAIN, 60.0)
    index.store(A, CHAIN[:5], Tier.DEVICE)
    assert index.stats().speculative == 3
    index.remove(A, CHAIN[3:5], Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(3, 3)}


def test_a_host_copy_does_not_end_speculation(index: BlockIndex, clock: Clock) -> None:
    index.set_mode(A, Mode.EXACT)
    index.speculate(A, CHAIN, 1.0)
    index.store(A, CHAIN[:2], Tier.HOST)
    assert index.match(CHAIN) == {A: Match(8, 8)}
    clock.now += 2.0
    index.expire()
    assert index.match(CHAIN) == {A: Match(2, 0)}


def test_an_approximate_endpoint_remembers_what_was_sent_to_it(index: BlockIndex, clock: Clock) -> None:
    assert index.mode(A) is Mode.APPROXIMATE
    index.speculate(A, CHAIN[:3], 1.0)
    index.record(A, CHAIN[:5])
    clock.now += 60.0
    index.expire()
    assert index.match(CHAIN) == {A: Match(5, 5)}
    assert index.stats().history == 5


def test_history_is_as_long_as_the_cache_and_forgets_the_least_recent_tail_first(index: BlockIndex) -> None:
    index.set_capacity(A, Tier.DEVICE, 8)
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    index.record(A, first)
    index.record(A, second)
    index.record(A, first[:2])
    index.record(A, [9, 10])
    assert index.match(first) == {A: Match(2, 2)}
    assert index.match(second) == {A: Match(4, 4)}
    index.record(A, [9, 10, 11])
    assert index.match(first) == {A: Match(2, 2)}
    assert index.match(second) == {A: Match(3, 3)}


def test_history_expires(index: BlockIndex, clock: Clock) -> None:
    index.record(A, CHAIN[:4])
    clock.now += 100_000.0
    index.record(A, CHAIN[:2])
    index.expire()
    assert index.match(CHAIN) == {A: Match(2, 2)}


def test_becoming_exact_forgets_the_history_and_keeps_what_events_said(index: BlockIndex) -> None:
    index.record(A, CHAIN)
    index.store(A, CHAIN[:2], Tier.DEVICE)
    assert index.match(CHAIN) == {A: Match(8, 8)}
    index.set_mode(A, Mode.EXACT)
    assert index.match(CHAIN) == {A: Match(2, 2)}
    index.record(A, CHAIN)
    assert index.match(CHAIN) == {A: Match(2, 2)}


def test_a_tier_is_bounded_a_tenth_above_its_capacity_tail_of_the_oldest_first(index: BlockIndex) -> None:
    index.set_capacity(A, Tier.DEVICE, 10)
    index.store(A, CHAIN, Tier.DEVICE)
    index.store(A, [1, 2, 3, 4, 5], Tier.DEVICE)
    assert index.stats().blocks[A][Tier.DEVICE] == 11
    assert index.match(CHAIN) == {A: Match(6, 6)}
    assert index.match([1, 2, 3, 4, 5]) == {A: Match(5, 5)}
    index.set_capacity(A, Tier.DEVICE, 5)
    assert index.stats().blocks[A][Tier.DEVICE] <= 6


def test_stats_count_what_is_held(index: BlockIndex) -> None:
    index.set_mode(A, Mode.EXACT)
    index.store(A, CHAIN[:3], Tier.DEVICE)
    index.store(A, CHAIN[:2], Tier.HOST)
    index.store(B, CHAIN[:1], Tier.STORAGE)
    index.speculate(A, CHAIN[:5], 9.0)
    stats = index.stats()
    assert stats.blocks == {
        A: {Tier.DEVICE: 3, Tier.HOST: 2, Tier.STORAGE: 0},
        B: {Tier.DEVICE: 0, Tier.HOST: 0, Tier.STORAGE: 1},
    }
    assert (stats.keys, stats.speculative, stats.history) == (5, 2, 0)
    assert stats.bytes_estimate > 0


KEYS = st.lists(st.integers(1, 12), max_size=8, unique=True)
ENDPOINTS = st.sampled_from(["a", "b", "c"])
TIERS = st.sampled_from(list(Tier))
OPERATIONS = st.one_of(
    st.tuples(st.just("store"), ENDPOINTS, KEYS, TIERS),
    st.tuples(st.just("remove"), ENDPOINTS, KEYS, TIERS),
    st.tuples(st.just("clear"), ENDPOINTS, st.one_of(st.none(), TIERS)),
    st.tuples(st.just("drop"), ENDPOINTS),
    # An index may be late by a tenth of a second: no time to live ends at a moment that is looked at.
    st.tuples(st.just("speculate"), ENDPOINTS, KEYS, st.sampled_from([1.0, 2.5])),
    st.tuples(st.just("record"), ENDPOINTS, KEYS),
    st.tuples(st.just("set_mode"), ENDPOINTS, st.sampled_from(list(Mode))),
    st.tuples(st.just("sleep"), st.just(1.5)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_an_index_answers_like_sets_would(make: Make, operations: list[tuple[object, ...]]) -> None:
    clock = Clock()
    index, naive = make(clock), NaiveIndex(clock)
    for name, *arguments in operations:
        if name == "sleep":
            clock.now += 1.5
            index.expire()
            naive.expire()
        else:
            getattr(index, str(name))(*arguments)
            getattr(naive, str(name))(*arguments)
        for start in (1, 5, 9):
            chain = list(range(start, 13))
            assert index.match(chain) == naive.match(chain)
    for _ in range(len(operations)):
        index.expire()
    assert index.stats().sweeping == 0
    for endpoint in ("a", "b", "c"):
        index.drop(endpoint)
    index.expire()
    assert index.stats().keys == 0
