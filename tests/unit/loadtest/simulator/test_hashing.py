"""Block hashes and encoded events equal those that vLLM 0.32 published."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from loadtest.simulator.events import CacheEvent, Cleared, EventCodec, Removed, Stored
from loadtest.simulator.hashing import ExtraKeys, as_int, block_hash, extra_keys
from tests.support.recordings import FOLDER

CAPTURE = FOLDER / "kv_events" / "h1_sha256cbor_default_int.jsonl"


def messages() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CAPTURE.read_text().splitlines()]


def recorded(kind: str) -> list[dict[str, Any]]:
    return [event for message in messages() for event in message["decoded"][1] if event["type"] == kind]


def salted(keys: list[str] | None) -> ExtraKeys:
    """The extra keys of the capture, which are salts alone."""
    return None if keys is None else tuple(("cache_salt", key) for key in keys)


def test_chains_equal_every_recorded_one() -> None:
    known: dict[int, bytes] = {}
    for event in recorded("BlockStored"):
        size = event["block_size"]
        parent = known.get(event["parent_block_hash"])
        for i, published in enumerate(event["block_hashes"]):
            extra = salted(event["extra_keys"][i])
            parent = block_hash(parent, event["token_ids"][i * size : (i + 1) * size], extra)
            assert as_int(parent) == published
            known[published] = parent
    assert len(known) > 100


def test_the_salt_is_in_the_first_block_and_the_adapter_in_all() -> None:
    assert extra_keys(0, "lora-a", "tenant") == (("lora", "lora-a"), ("cache_salt", "tenant"))
    assert extra_keys(1, "lora-a", "tenant") == (("lora", "lora-a"),)
    assert extra_keys(1, None, "tenant") is None


@pytest.mark.parametrize("number", range(4))
def test_a_batch_is_encoded_byte_for_byte_as_recorded(number: int) -> None:
    message = messages()[number]
    timestamp, events, rank = message["decoded"]
    rebuilt: list[CacheEvent] = []
    for event in events:
        hashes = tuple(h.to_bytes(8, "big") for h in event["block_hashes"])
        parent = event["parent_block_hash"]
        rebuilt.append(
            Stored(
                hashes=hashes,
                parent=None if parent is None else parent.to_bytes(8, "big"),
                token_ids=tuple(event["token_ids"]),
                block_size=event["block_size"],
                extra=tuple(map(salted, event["extra_keys"])),
            )
        )
    assert EventCodec().encode(timestamp, rebuilt, rank) == bytes.fromhex(message["frames_hex"][2])


def test_removals_and_resets_have_the_recorded_fields() -> None:
    payload = EventCodec().encode(1.0, [Removed(b"\0" * 31 + b"\7"), Cleared()], 3)
    timestamp, (removed, cleared), rank = msgspec.msgpack.decode(payload)
    assert (timestamp, rank) == (1.0, 3)
    assert removed == {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}
    assert list(removed) == list(recorded("BlockRemoved")[0])
    assert cleared == recorded("AllBlocksCleared")[0]


def test_the_array_form_holds_the_tag_first_and_raw_hashes_stay_whole() -> None:
    codec = EventCodec(map_form=False, int_hashes=False)
    _, (event,), _ = msgspec.msgpack.decode(codec.encode(1.0, [Removed(b"x" * 32)], 0))
    assert event[:3] == ["BlockRemoved", [b"x" * 32], "GPU"]
