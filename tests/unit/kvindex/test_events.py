"""KV-event bytes: both event forms of vLLM, what later versions may add, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvindex.events import (
    MAX_PAYLOAD_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    MalformedEvents,
    decode_events,
    decode_frames,
    engine_hash,
)
from tests.support.kvindex import CLEARED, removed, stored


def encode(*events: Any, dp_rank: int | None = 3) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), dp_rank])


def test_the_map_form() -> None:
    batch = decode_events(encode(stored([1, 2], range(32), 16, parent=9), removed([7], "CPU"), CLEARED))
    assert (batch.timestamp, batch.dp_rank, batch.unknown) == (1.5, 3, 0)
    block, gone, cleared = batch.events
    assert isinstance(block, BlockStored)
    assert (block.block_hashes, block.parent_block_hash, block.block_size, block.medium) == ([1, 2], 9, 16, "GPU")
    assert list(block.tokens()) == list(range(32))
    assert gone == BlockRemoved([7], "CPU")
    assert cleared == AllBlocksCleared()


ARRAY = ["BlockStored", [1, 2], 9, list(range(32)), 16, 1, "CPU", "ada", [None, ["ada", "x"]], 0, "full_attention"]


@pytest.mark.parametrize("positions", range(4, 14))
def test_the_array_form_with_any_number_of_positions(positions: int) -> None:
    [block] = decode_events(encode([*ARRAY, "from the future", {"a": 1}][:positions])).events
    assert isinstance(block, BlockStored)
    assert (block.block_hashes, block.parent_block_hash) == ([1, 2], 9)
    assert list(block.tokens()) == list(range(32))
    fields = [block.block_size, block.lora_id, block.medium, block.lora_name, block.extras(), block.group_idx]
    defaults = [0, None, None, None, None, None]
    known = max(0, positions - 4)
    assert fields == ARRAY[4 : 4 + min(known, 6)] + defaults[known:]


def test_array_removals_and_clearings() -> None:
    batch = decode_events(encode(["BlockRemoved", [1]], ["BlockRemoved", [2], "CPU", 1, "new"], ["AllBlocksCleared"]))
    assert batch.events == [BlockRemoved([1]), BlockRemoved([2], "CPU", 1), AllBlocksCleared()]


@pytest.mark.parametrize("form", [dict, list])
def test_unknown_events_are_skipped_and_counted(form: type) -> None:
    unknown: Any = {"type": "BlockMoved", "to": [1]} if form is dict else ["BlockMoved", [1]]
    batch = decode_events(encode(unknown, removed([7]), unknown))
    assert batch.events == [BlockRemoved([7], "GPU")]
    assert batch.unknown == 2


def test_unknown_fields_are_ignored_and_missing_ones_take_defaults() -> None:
    event = {"type": "BlockStored", "block_hashes": [1], "ownership": {"x": 1}, "session_id": "s"}
    [block] = decode_events(encode(event)).events
    assert isinstance(block, BlockStored)
    assert (block.parent_block_hash, block.has_tokens, block.has_extra_keys) == (None, False, False)
    assert len(block.tokens()) == 0


@pytest.mark.parametrize("tail", [[], [None], [0, "later", 5]])
def test_a_batch_may_be_shorter_or_longer(tail: list[Any]) -> None:
    assert decode_events(msgspec.msgpack.encode([1, [], *tail])).events == []


def test_every_form_of_a_hash_becomes_the_same_unsigned_integer() -> None:
    digest = bytes(range(24)) + (2**64 - 5).to_bytes(8, "big")
    assert engine_hash(-5) == engine_hash(2**64 - 5) == engine_hash(digest) == 2**64 - 5
    [gone] = decode_events(encode(removed([-5, 2**64 - 5, digest]))).events
    assert isinstance(gone, BlockRemoved)
    assert [engine_hash(value) for value in gone.block_hashes] == [2**64 - 5] * 3


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\xff",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        encode(5),
        encode({}),
        encode([]),
        encode({"type": "BlockStored"}),
        encode({"type": "BlockRemoved", "block_hashes": "abc"}),
        encode(["BlockStored", [1]]),
        b"\x92\x01" + b"\x91" * 100_000,
        b"\x92\x01\x91\x82\xa4type\xa3New\xa1x" + b"\x91" * 100_000 + b"\xc0",
    ],
)
def test_malformed_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedEvents):
        decode_events(payload)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(payload: bytes) -> None:
    try:
        decode_events(payload)
    except MalformedEvents:
        return


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["x"], [[1, 2]], "text"])
def test_token_ids_of_another_form_are_refused_when_asked_for(tokens: Any) -> None:
    [block] = decode_events(encode({"type": "BlockStored", "block_hashes": [1], "token_ids": tokens})).events
    assert isinstance(block, BlockStored)
    with pytest.raises(MalformedEvents):
        block.tokens()


def test_frames() -> None:
    message = decode_frames([b"kv@a", (7).to_bytes(8, "big"), b"payload"])
    assert (message.topic, message.sequence, message.payload) == (b"kv@a", 7, b"payload")
    assert decode_frames([b"", b"\xff" * 8, b""]).sequence == -1


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"kv", b"\0" * 8],
        [b"kv", b"\0" * 4, b""],
        [b"kv", b"\0" * 8, b"", b""],
        [b"kv", b"\x80" + b"\0" * 7, b""],
        [b"kv", b"\0" * 8, bytes(MAX_PAYLOAD_BYTES + 1)],
    ],
)
def test_malformed_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(MalformedEvents):
        decode_frames(frames)
