"""One engine rank's messages: sequence, gaps, restarts, tiers, counts, block sizes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvindex import Tier, block_hashes, chain_root
from kvindex.events import Message
from kvindex.ingest import EXACT, HOLE, NO_REPLAY, TOO_SHORT, Ingest, SourceState
from kvindex.operations import Clear, Remove, Resync, Store, apply_operations
from tests.support.kvindex import CLEARED, message, removed, stored, tier_stored
from tests.support.kvindex_captures import SetSink

MODEL, B, E = "m", 4, "engine"
TOKENS = list(range(100, 124))
KEYS = block_hashes(TOKENS, B, chain_root(MODEL))
HASHES = [1001, 1002, 1003, 1004, 1005, 1006]
ALL = stored(HASHES, TOKENS, B)


def synced(block_size: int = B) -> Ingest:
    """An ingest whose engine had published nothing when the subscription began."""
    ingest = Ingest(MODEL, block_size)
    assert ingest.start() == [Resync(0, "start")]
    assert ingest.replay_ended() == []
    assert ingest.state == EXACT
    return ingest


class Source:
    """An ingest with the sets its operations lead to; resyncs are answered from what the engine still has."""

    def __init__(self, block_size: int = B) -> None:
        self.ingest = synced(block_size)
        self.sink = SetSink()
        self.sequence = 0

    def feed(self, *events: Any) -> Resync | None:
        resync = self.live(message(self.sequence, *events))
        self.sequence += 1
        return resync

    def live(self, each: Message) -> Resync | None:
        return apply_operations(self.ingest.live(each), self.sink, E)

    def replay(self, *messages: Message) -> Resync | None:
        for each in messages:
            resync = apply_operations(self.ingest.replayed(each), self.sink, E)
            if resync is not None:
                return resync
        return apply_operations(self.ingest.replay_ended(), self.sink, E)

    def held(self, tier: Tier = Tier.DEVICE) -> set[int]:
        return self.sink.keys(E, tier)


def test_stored_blocks_get_the_keys_of_their_prompts() -> None:
    source = Source()
    source.feed(stored(HASHES[:2], TOKENS[: 2 * B], B), stored(HASHES[2:], TOKENS[2 * B :], B, parent=HASHES[1]))
    assert source.held() == set(KEYS)
    source.feed(removed(HASHES[4:]))
    assert source.held() == set(KEYS[:4])


def test_neighbouring_operations_of_a_kind_become_one() -> None:
    ingest = synced()
    operations = ingest.live(
        message(0, ALL, removed([HASHES[5]]), removed([HASHES[4]]), tier_stored([HASHES[0]], "CPU"))
    )
    assert operations == [
        Store(KEYS, Tier.DEVICE),
        Remove([KEYS[5], KEYS[4]], Tier.DEVICE),
        Store([KEYS[0]], Tier.HOST),
    ]


def test_a_block_stored_three_times_leaves_with_its_third_removal() -> None:
    source = Source()
    source.feed(stored(HASHES[:1], TOKENS[:B], B))
    source.feed(stored([HASHES[0], HASHES[0]], TOKENS[:B] * 2, B))
    for _ in range(2):
        source.feed(removed(HASHES[:1]))
        assert source.held() == {KEYS[0]}
    source.feed(removed(HASHES[:1]))
    assert source.held() == set()
    source.feed(removed(HASHES[:1]))
    assert source.ingest.counters.unknown_hashes == 1


def test_tiers_are_told_apart_and_clearing_means_the_device() -> None:
    source = Source()
    source.feed(ALL, tier_stored(HASHES[:3], "CPU"), tier_stored(HASHES[:2], "STORAGE"))
    source.feed(removed(HASHES[:1], "CPU"))
    assert source.held(Tier.HOST) == set(KEYS[1:3])
    assert source.held(Tier.STORAGE) == set(KEYS[:2])
    source.feed(CLEARED)
    assert source.held() == set()
    assert source.held(Tier.HOST) == set(KEYS[1:3])
    source.feed(stored(HASHES[3:4], TOKENS[3 * B : 4 * B], B, parent=HASHES[2]))
    assert source.held() == {KEYS[3]}


def test_a_copy_announced_after_its_block_left_the_device_is_known() -> None:
    source = Source()
    source.feed(ALL)
    source.feed(removed(HASHES))
    source.feed(tier_stored(HASHES, "CPU"))
    assert source.held(Tier.HOST) == set(KEYS)
    source.feed(tier_stored([999], "CPU"))
    assert source.ingest.counters.unknown_hashes == 1


def test_media_and_cache_groups_that_are_not_indexed_are_counted_and_left_alone() -> None:
    source = Source()
    source.feed(
        stored(HASHES, TOKENS, B, group_idx=1, kv_cache_spec_kind="full_attention"),
        stored([5], TOKENS[:B], B, group_idx=0, kv_cache_spec_kind="sliding_window"),
        stored([6], TOKENS[:B], B, group_idx=2, kv_cache_spec_kind="full_attention"),
        removed(HASHES, group_idx=0),
        tier_stored(HASHES, "CPU", group_idx=0),
        tier_stored(HASHES, "TAPE", group_idx=1),
    )
    assert source.held() == set(KEYS)
    assert source.held(Tier.HOST) == set()
    assert (source.ingest.counters.foreign_blocks, source.ingest.counters.unknown_media) == (4, 1)
    source.feed(removed(HASHES[3:], group_idx=1))
    assert source.held() == set(KEYS[:3])


@pytest.mark.parametrize("medium", ["CPU", "CPU_TIER1", "cpu_pinned"])
def test_host_pools_by_any_name(medium: str) -> None:
    source = Source()
    source.feed(ALL, tier_stored(HASHES[:1], medium))
    assert source.held(Tier.HOST) == {KEYS[0]}


def test_adapter_and_salt_enter_the_keys_as_they_do_for_a_request() -> None:
    source = Source()
    source.feed(
        stored([1], TOKENS[:B], B, lora_id=1, lora_name="x", extra_keys=[["x"]]),
        stored([2], TOKENS[:B], B, extra_keys=[["x"]]),
        stored([3, 4], TOKENS[: 2 * B], B, lora_id=1, lora_name="x", extra_keys=[["x", "x"], ["x"]]),
    )
    lora, base = chain_root(MODEL, "x"), chain_root(MODEL)
    expected = [
        *block_hashes(TOKENS[:B], B, lora),
        *block_hashes(TOKENS[:B], B, base, cache_salt="x"),
        *block_hashes(TOKENS[: 2 * B], B, lora, cache_salt="x"),
    ]
    assert source.held() == set(expected)
    assert len(set(expected)) == 4


def test_a_salt_field_and_images_and_embeddings_enter_their_blocks() -> None:
    source = Source()
    source.feed(
        stored([1], TOKENS[:B], B, cache_salt="s", extra_keys=None),
        stored([3, 4], TOKENS[: 2 * B], B, extra_keys=[[["image", 2], "s"], [["image", -2], b"digest"]]),
    )
    root = chain_root(MODEL)
    image = {0: [("salt", b"s"), ("mm", b"image@2")], 1: [("mm", b"image@-2"), ("embeds", b"digest")]}
    expected = block_hashes(TOKENS[: 2 * B], B, root, extras=image)
    assert source.held() == {*expected, *block_hashes(TOKENS[:B], B, root, cache_salt="s")}


def test_an_adapter_known_by_number_alone_never_matches_the_base_model() -> None:
    source = Source()
    source.feed(stored([1], TOKENS[:B], B, lora_id=3))
    assert len(source.held()) == 1
    assert source.held().isdisjoint(KEYS)


def test_a_salted_block_promoted_before_it_was_described_moves_to_its_true_key() -> None:
    source = Source()
    promoted = stored([1, 2], TOKENS[: 2 * B], B, medium="CPU")
    del promoted["extra_keys"]
    source.feed(promoted)
    assert source.held(Tier.HOST) == set(KEYS[:2])
    source.feed(stored([1, 2], TOKENS[: 2 * B], B, extra_keys=[["tenant"], None]))
    salted = block_hashes(TOKENS[: 2 * B], B, chain_root(MODEL), cache_salt="tenant")
    assert source.held(Tier.HOST) == source.held() == set(salted)


# Block sizes


def test_larger_engine_blocks_stand_for_several_keys() -> None:
    source = Source()
    source.feed(stored([1, 2], TOKENS[: 4 * B], 2 * B))
    source.feed(stored([3], TOKENS[4 * B :], 2 * B, parent=2))
    assert source.held() == set(KEYS)
    source.feed(removed([2]))
    assert source.held() == {*KEYS[:2], *KEYS[4:]}


def test_smaller_engine_blocks_make_a_key_when_all_its_parts_are_held() -> None:
    source = Source()
    source.feed(stored([1, 2, 3], TOKENS[:6], 2))
    assert source.held() == {KEYS[0]}
    source.feed(stored([4], TOKENS[6:8], 2, parent=3), stored([5, 6], TOKENS[8:12], 2, parent=4))
    assert source.held() == set(KEYS[:3])
    source.feed(tier_stored([1, 2, 4], "CPU"))
    assert source.held(Tier.HOST) == {KEYS[0]}
    source.feed(removed([3]))
    assert source.held() == {KEYS[0], KEYS[2]}
    source.feed(stored([3], TOKENS[4:6], 2, parent=2))
    assert source.held() == set(KEYS[:3])
    source.feed(CLEARED)
    assert source.held() == set()
    assert source.held(Tier.HOST) == {KEYS[0]}


@pytest.mark.parametrize("engine_size", [3, 6])
def test_block_sizes_that_do_not_divide_are_refused_and_said(engine_size: int) -> None:
    source = Source()
    source.feed(stored([1], TOKENS[:engine_size], engine_size))
    assert source.held() == set()
    assert source.ingest.state == SourceState(False, "block size")
    assert source.ingest.counters.unindexable == 1


def test_an_engine_that_changes_its_block_size_is_not_guessed_at() -> None:
    source = Source()
    source.feed(ALL, stored([1], TOKENS[: 2 * B], 2 * B))
    assert source.ingest.state == SourceState(False, "several block sizes")
    assert source.held() == set(KEYS)


def test_lookahead_hashing_is_refused() -> None:
    source = Source()
    source.feed(stored([1], TOKENS[:B], B, lookahead_token_ids=[7]))
    assert source.ingest.state == SourceState(False, "lookahead hashing")


def test_contents_that_do_not_fit_their_hashes_are_malformed() -> None:
    source = Source()
    source.feed(stored([1, 2], TOKENS[:B], B), stored([3], TOKENS[:B], B))
    assert source.held() == {KEYS[0]}
    assert source.ingest.counters.malformed == 1
    assert not source.ingest.state.exact


# Sequence


def test_duplicates_change_nothing() -> None:
    source = Source()
    source.feed(ALL)
    source.feed(removed([HASHES[5]]))
    assert source.live(message(0, ALL)) is None
    assert source.held() == set(KEYS[:5])
    assert source.ingest.counters.duplicates == 1


def test_a_gap_is_filled_from_the_replay_which_proves_the_incarnation() -> None:
    source = Source()
    stream = [
        message(i, stored([HASHES[i]], TOKENS[i * B : (i + 1) * B], B, parent=HASHES[i - 1] if i else None))
        for i in range(5)
    ]
    source.live(stream[0])
    source.live(stream[1])
    assert source.live(stream[4]) == Resync(1, "gap")
    assert source.ingest.syncing
    assert source.replay(*stream[1:]) is None
    assert source.live(stream[4]) is None
    assert source.held() == set(KEYS[:5])
    assert source.ingest.state == EXACT
    assert (source.ingest.counters.gaps, source.ingest.counters.duplicates) == (1, 1)


def test_a_restart_that_looks_like_a_gap_is_found_out() -> None:
    source = Source()
    source.feed(ALL)
    assert source.live(message(7, timestamp=5000.0)) == Resync(0, "gap")
    other = message(0, stored([9], TOKENS[:B], B), timestamp=4000.0)
    assert source.replay(other) == Resync(0, "restart")
    assert source.held() == set()
    assert source.replay(other) is None
    assert source.held() == {KEYS[0]}
    assert source.ingest.state == EXACT


def test_a_restarted_engine_that_has_not_come_as_far_is_found_out() -> None:
    source = Source()
    source.feed(ALL)
    source.feed()
    source.feed()
    assert source.live(message(9)) == Resync(2, "gap")
    assert source.replay() == Resync(0, "restart")


def test_a_low_sequence_with_a_new_timestamp_is_a_restart() -> None:
    source = Source()
    source.feed(ALL)
    source.feed(removed(HASHES))
    assert source.live(message(0, ALL, timestamp=9000.0)) == Resync(0, "restart")
    assert source.replay(message(0, ALL, timestamp=9000.0)) is None
    assert source.held() == set(KEYS)
    assert source.ingest.state == EXACT


def test_a_restart_told_from_outside_clears_and_replays_from_zero() -> None:
    source = Source()
    source.feed(ALL)
    assert source.ingest.restarted() == [Clear(None), Resync(0, "restart")]
    assert not source.ingest.state.exact


def test_a_replay_that_does_not_reach_back_empties_the_endpoint_and_goes_on_approximately() -> None:
    source = Source()
    source.feed(ALL)
    assert source.live(message(50)) == Resync(0, "gap")
    assert source.replay(message(40, stored([1], TOKENS[:B], B)), message(41)) is None
    assert source.held() == {KEYS[0]}
    assert source.ingest.state == SourceState(False, TOO_SHORT)
    assert source.ingest.next_sequence == 42
    assert source.live(message(42, CLEARED)) is None
    assert source.ingest.state == EXACT


def test_a_hole_in_the_replay_is_a_loss() -> None:
    source = Source()
    source.feed(ALL)
    source.live(message(5))
    source.replay(message(0, ALL), message(3, stored([1], TOKENS[:B], B)))
    assert source.held() == {KEYS[0]}
    assert source.ingest.state == SourceState(False, HOLE)


def test_a_gap_that_the_replay_leaves_open_is_not_asked_for_twice() -> None:
    source = Source()
    source.feed(ALL)
    assert source.live(message(5)) == Resync(0, "gap")
    assert source.replay(message(0, ALL)) is None
    assert source.live(message(5, stored([1], TOKENS[:B], B))) is None
    assert source.held() == {KEYS[0]}
    assert source.ingest.state == SourceState(False, HOLE)


def test_without_a_replay_socket_only_a_stream_from_its_beginning_is_exact() -> None:
    early, late = Ingest(MODEL, B), Ingest(MODEL, B)
    for ingest in (early, late):
        ingest.start()
        ingest.replay_failed(NO_REPLAY)
        assert ingest.state == SourceState(False, NO_REPLAY)
    early.live(message(0, ALL))
    late.live(message(3, ALL))
    assert early.state == EXACT
    assert late.state == SourceState(False, NO_REPLAY)
    assert late.next_sequence == 4


def test_without_a_replay_socket_a_gap_empties_the_endpoint() -> None:
    source = Source()
    source.feed(ALL)
    source.live(message(5))
    assert source.ingest.replay_failed(NO_REPLAY) == [Clear(None)]
    assert source.live(message(5, stored([1], TOKENS[:B], B))) is None
    assert source.ingest.next_sequence == 6


def test_an_unknown_parent_asks_for_everything_once_and_then_counts() -> None:
    source = Source()
    orphan = stored([2], TOKENS[B : 2 * B], B, parent=404)
    assert source.feed(ALL) is None
    assert source.feed(orphan) == Resync(0, "unknown parent")
    assert source.replay(message(0, ALL), message(1, orphan)) is None
    assert source.held() == set(KEYS)
    assert source.ingest.state == SourceState(False, "unknown parent")
    for _ in range(3):
        assert source.feed(orphan) is None
    assert source.ingest.counters.unknown_parents == 5


def test_a_malformed_payload_is_counted_and_asked_for_again() -> None:
    source = Source()
    source.feed(ALL)
    assert source.live(Message(b"kv", 1, b"\xc1")) is None
    assert source.live(message(2, removed(HASHES[:1]))) == Resync(0, "gap")
    assert source.replay(message(0, ALL), message(1), message(2, removed(HASHES[:1]))) is None
    assert source.held() == set(KEYS[1:])
    assert (source.ingest.state, source.ingest.counters.malformed) == (EXACT, 1)


def test_a_payload_malformed_in_the_replay_too_is_a_loss_and_the_next_one_is_applied() -> None:
    source = Source()
    source.feed(ALL)
    bad = Message(b"kv", 1, b"\xc1")
    source.live(bad)
    source.live(message(2))
    source.replay(message(0, ALL), bad, message(2, stored([1], TOKENS[:B], B)))
    assert source.held() == {KEYS[0]}
    assert source.ingest.state == SourceState(False, "malformed events")
    assert source.live(message(9)) == Resync(2, "gap")


def test_garbage_with_any_sequence_asks_for_nothing_and_loses_nothing() -> None:
    source = Source()
    source.feed(ALL)
    for sequence in (0, 1, 7, 2**62):
        assert source.live(Message(b"kv", sequence, b"\xc1 garbage")) is None
    assert source.feed(removed(HASHES[:1])) is None
    assert source.held() == set(KEYS[1:])
    assert (source.ingest.state, source.ingest.counters.malformed) == (EXACT, 4)


# Laws


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    """What an engine with a small cache could publish: chains that grow, blocks stored again, removed, cleared."""
    counts: dict[int, int] = {}
    parents: dict[int, int | None] = {}
    messages = []
    for sequence in range(draw(st.integers(1, 12))):
        events: list[Any] = []
        for _ in range(draw(st.integers(0, 4))):
            held = sorted(hash_ for hash_, count in counts.items() if count)
            kind = draw(st.sampled_from(["grow", "grow", "again", "remove", "clear"] if held else ["grow"]))
            if kind == "clear":
                events.append(CLEARED)
                counts.clear()
            elif kind == "remove":
                hash_ = draw(st.sampled_from(held))
                counts[hash_] -= 1
                events.append(removed([hash_]))
            else:
                if kind == "grow":
                    hash_ = len(parents) + 1
                    parents[hash_] = draw(st.sampled_from([None, *held]))
                else:
                    hash_ = draw(st.sampled_from(held))
                counts[hash_] = counts.get(hash_, 0) + 1
                events.append(stored([hash_], [hash_] * B, B, parent=parents[hash_]))
        messages.append(message(sequence, *events))
    return messages


def plainly(stream: list[Message]) -> set[int]:
    source = Source()
    for each in stream:
        assert source.live(each) is None
    assert source.ingest.state == EXACT
    return source.held()


@given(streams(), st.data())
def test_duplicates_never_matter(stream: list[Message], data: st.DataObject) -> None:
    source = Source()
    for at, each in enumerate(stream):
        source.live(each)
        for again in data.draw(st.lists(st.integers(0, at), max_size=3)):
            assert source.live(stream[again]) is None
    assert source.held() == plainly(stream)


@given(streams(), st.data())
def test_a_gap_and_its_replay_end_like_no_gap(stream: list[Message], data: st.DataObject) -> None:
    source = Source()
    lost = data.draw(st.sets(st.integers(0, len(stream) - 1)))
    for at, each in enumerate(stream):
        if at in lost and at + 1 < len(stream):
            continue
        resync = source.live(each)
        if resync is not None:
            assert source.replay(*stream[resync.from_sequence : at + 1]) is None
    assert source.ingest.state == EXACT
    assert source.held() == plainly(stream)
