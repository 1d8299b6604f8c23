"""The memory index beyond the contract: bounds over all endpoints, and memory given back in slices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvindex import Match, MemoryIndex, Mode, Tier
from kvindex.masks import NEAR_AND_ANY, MaskTable
from tests.support.kvindex import Clock


def test_over_the_global_bound_the_endpoint_longest_silent_is_emptied() -> None:
    clock, shed = Clock(), list[str]()
    index = MemoryIndex(clock, max_blocks=10, on_shed=shed.append)
    for name in ("old", "older", "new"):
        clock.now += 1
        index.store(name, [1, 2, 3], Tier.DEVICE)
    clock.now += 1
    index.remove("old", [99], Tier.DEVICE)
    index.store("new", [4, 5], Tier.DEVICE)
    assert shed == ["older"]
    assert index.match([1, 2, 3, 4]) == {"old": Match(3, 3), "new": Match(4, 4)}
    assert index.stats().shed == 1


def test_an_endpoint_alone_over_the_global_bound_loses_its_oldest_entries() -> None:
    index = MemoryIndex(Clock(), max_blocks=4)
    index.store("only", [1, 2, 3], Tier.DEVICE)
    index.store("only", [4, 5, 6], Tier.DEVICE)
    assert index.match([1, 2, 3]) == {"only": Match(1, 1)}
    assert index.match([4, 5, 6]) == {"only": Match(3, 3)}


def test_a_cleared_endpoint_is_swept_in_slices_and_invisible_meanwhile() -> None:
    index = MemoryIndex(Clock(), sweep_slice=10)
    index.store("a", range(25), Tier.DEVICE)
    index.clear("a", None)
    assert index.match([0]) == {}
    left = []
    for _ in range(4):
        left.append(index.stats().sweeping)
        index.expire()
    assert left == [25, 15, 5, 0]
    assert index.stats().keys == 0


def test_writes_sweep_at_least_as_fast_as_they_write() -> None:
    index = MemoryIndex(Clock())
    for generation in range(50):
        index.store("a", range(generation * 100, generation * 100 + 100), Tier.DEVICE)
        index.clear("a", None)
    assert index.stats().sweeping <= 200


def test_a_slot_is_used_again_only_after_its_sweep() -> None:
    table = MaskTable()
    slot = table.take_slot("a")
    held = dict.fromkeys(range(5), 0.0)
    table.mark(slot, held, NEAR_AND_ANY)
    table.retire_slot(slot, [held])
    assert table.take_slot("b") != slot
    table.sweep(3)
    assert table.take_slot("c") != slot
    table.sweep(10)
    assert table.take_slot("d") == slot
    assert table.match([0]) == {}


@given(st.integers(1, 150), st.integers(1, 40))
def test_many_endpoints_at_many_depths(endpoints: int, depth: int) -> None:
    index = MemoryIndex(Clock())
    chain = list(range(1000, 1000 + depth))
    expected = {}
    for number in range(endpoints):
        length = 1 + number % depth
        tier = Tier.HOST if number % 3 == 0 else Tier.DEVICE
        index.store(f"e{number}", chain[:length], tier)
        expected[f"e{number}"] = Match(length, 0 if tier is Tier.HOST else length)
    assert index.match(chain) == expected


def test_the_long_history_of_many_endpoints_expires_over_several_calls() -> None:
    clock = Clock()
    index = MemoryIndex(clock, history_ttl_s=10.0, sweep_slice=20)
    for number in range(20):
        index.record(f"e{number}", range(50))
    clock.now += 11
    for _ in range(20):
        index.expire()
    assert index.stats().history == 0
    assert index.stats().keys == 0


def test_the_size_of_what_was_speculated_is_bounded_by_the_cache() -> None:
    index = MemoryIndex(Clock())
    index.set_mode("a", Mode.EXACT)
    index.set_capacity("a", Tier.DEVICE, 20)
    for start in range(0, 500, 10):
        index.speculate("a", range(start, start + 10), 60.0)
    assert index.stats().speculative == 20
    assert index.match(range(490, 500)) == {"a": Match(10, 10)}
