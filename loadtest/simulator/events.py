"""KV-cache events as vLLM 0.32 publishes them, and their encoding. PURE.

A batch is msgpack ``[timestamp, [event, ...], data_parallel_rank]``. In the map form each event is a map with its
``type``; in the array form of older releases it is an array that begins with it. Field names and order follow
recordings of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.simulator.hashing import BlockHash, ExtraKeys, as_int


class Stored(msgspec.Struct, frozen=True):
    """A run of consecutive full blocks entered the cache behind `parent`."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    extra: tuple[ExtraKeys, ...]
    lora_id: int | None = None
    lora_name: str | None = None
    session_id: str | None = None


class Removed(msgspec.Struct, frozen=True):
    """One block left the cache."""

    block_hash: BlockHash


class Cleared(msgspec.Struct, frozen=True):
    """The whole cache was reset."""


CacheEvent = Stored | Removed | Cleared

MEDIUM = "GPU"


class EventCodec:
    """Encodes batches in one of the two forms, with integer or raw hashes."""

    def __init__(self, *, map_form: bool = True, int_hashes: bool = True) -> None:
        self._map_form = map_form
        self._int_hashes = int_hashes
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, timestamp: float, events: Sequence[CacheEvent], rank: int) -> bytes:
        return self._encoder.encode([timestamp, [self._event(e) for e in events], rank])

    def _hash(self, value: BlockHash) -> int | bytes:
        return as_int(value) if self._int_hashes else value

    def _event(self, event: CacheEvent) -> dict[str, object] | list[object]:
        match event:
            case Stored():
                fields = self._stored(event)
            case Removed():
                fields = {
                    "type": "BlockRemoved",
                    "block_hashes": [self._hash(event.block_hash)],
                    "medium": MEDIUM,
                    "group_idx": 0,
                }
            case Cleared():
                fields = {"type": "AllBlocksCleared"}
        return fields if self._map_form else list(fields.values())

    def _stored(self, event: Stored) -> dict[str, object]:
        fields: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": [self._hash(h) for h in event.hashes],
            "parent_block_hash": None if event.parent is None else self._hash(event.parent),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": event.lora_id,
            "medium": MEDIUM,
            "lora_name": event.lora_name,
            "extra_keys": [None if keys is None else [value for _, value in keys] for keys in event.extra],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        if event.session_id is not None:
            fields["session_id"] = event.session_id
        return fields
