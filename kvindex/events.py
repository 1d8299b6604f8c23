"""vLLM KV-event bytes -> BlockStored | BlockRemoved | AllBlocksCleared. PURE.

A message has three frames: topic, sequence (8 bytes big endian, signed; -1 ends a replay) and a msgpack payload
``[timestamp, [event, ...], dp_rank]``. An event is a map with its name under ``type`` (vLLM 0.32) or an array that
begins with it (older releases). Fields and array positions that are not known here are ignored, missing ones take
defaults, events of unknown name are skipped and counted: engines add to all three without notice.

Token ids and extra keys stay msgpack until somebody asks: most stored blocks are known by their hash already.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.msgpack import Decoder

END_OF_REPLAY = -1
"""Sequence of the message that ends a replay."""

MAX_PAYLOAD_BYTES = 16 << 20
"""Far above any engine step; what is larger is not looked at."""

_NIL = b"\xc0"
_EMPTY = (0xC0, 0x90)
"""First bytes of msgpack's nil and of its empty array."""
_ABSENT = Raw(b"")
_HASH_MASK = (1 << 64) - 1

Hash = int | bytes
"""An engine hash on the wire: a signed or unsigned integer, or the digest itself."""


class MalformedEvents(ValueError):
    """Frames or a payload that keep to no form known here. The message never shows the content."""


class Tier(IntEnum):
    """Where an engine holds a block, from near to far. The names in lower case are the metric labels."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class Message(msgspec.Struct, frozen=True):
    """One multipart message of an engine's event socket."""

    topic: bytes
    sequence: int
    payload: bytes


class BlockStored(msgspec.Struct, frozen=True, tag_field="type", tag="BlockStored"):
    """Blocks that a tier now holds: a run of one chain, in order."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    """The block before the first; None where the chain starts, and in tier events without content."""
    token_ids: Raw = _ABSENT
    block_size: int = 0
    """Tokens per block; 0 in tier events without content."""
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = _ABSENT
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None
    lookahead_token_ids: Raw = _ABSENT

    def tokens(self) -> array[int]:
        """The blocks' token ids. Raises MalformedEvents if they are not a list of unsigned 32-bit integers."""
        if self.token_ids is _ABSENT:
            return array("I")
        try:
            return array("I", _TOKENS.decode(self.token_ids))
        except (*_UNREADABLE, OverflowError):
            raise MalformedEvents("token ids are no list of unsigned 32-bit integers") from None

    @property
    def has_tokens(self) -> bool:
        return self.token_ids is not _ABSENT and memoryview(self.token_ids)[0] not in _EMPTY

    @property
    def has_extra_keys(self) -> bool:
        """False when the engine did not send the field at all; a salt may then go unseen."""
        return self.extra_keys is not _ABSENT

    def extras(self) -> list[list[Any] | None] | None:
        """Per block, what besides tokens entered the engine's hash; None when no block has any."""
        if self.extra_keys is _ABSENT or bytes(self.extra_keys) == _NIL:
            return None
        try:
            return _EXTRAS.decode(self.extra_keys)
        except _UNREADABLE:
            raise MalformedEvents("extra_keys are no list of lists") from None

    @property
    def looks_ahead(self) -> bool:
        """The engine hashed tokens beyond each block: equal blocks may differ in hash."""
        return self.lookahead_token_ids is not _ABSENT and bytes(self.lookahead_token_ids) != _NIL


class BlockRemoved(msgspec.Struct, frozen=True, tag_field="type", tag="BlockRemoved"):
    """Blocks that a tier no longer holds."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag_field="type", tag="AllBlocksCleared"):
    """The device tier of this rank was emptied; other tiers keep what they have."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What one engine step did to its caches."""

    timestamp: float
    """Unix seconds of the engine's clock."""
    events: list[Event]
    dp_rank: int | None = None
    unknown: int = 0
    """Events of unknown name, left out."""


class _WireBatch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    dp_rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[Raw]
    dp_rank: int | None = None


class _ArrayStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: Raw
    block_size: int = 0
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = _ABSENT
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _ArrayRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class _ArrayCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


_BATCH = Decoder(_WireBatch)
_RAW_BATCH = Decoder(_RawBatch)
_MAP_EVENT = Decoder(BlockStored | BlockRemoved | AllBlocksCleared)
_ARRAY_EVENT = Decoder(_ArrayStored | _ArrayRemoved | _ArrayCleared)
_ANY = Decoder()
_TOKENS = Decoder(list[int])
_EXTRAS = Decoder(list[list[Any] | None] | None)
_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""The second for a payload nested without end."""
_NAMES = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


def decode_frames(frames: Sequence[bytes]) -> Message:
    """The three frames of a live message, or of a replayed one without its leading empty frame.

    Raises MalformedEvents for another number of frames, a sequence of another length or below -1, and a payload
    larger than `MAX_PAYLOAD_BYTES`.
    """
    if len(frames) != 3:
        raise MalformedEvents(f"a message has {len(frames)} frames instead of 3")
    topic, sequence, payload = frames
    if len(sequence) != 8:
        raise MalformedEvents(f"a sequence has {len(sequence)} bytes instead of 8")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MalformedEvents(f"a payload has {len(payload)} bytes, more than {MAX_PAYLOAD_BYTES}")
    number = int.from_bytes(sequence, "big", signed=True)
    if number < END_OF_REPLAY:
        raise MalformedEvents("a sequence is negative")
    return Message(topic, number, payload)


def decode_events(payload: bytes) -> EventBatch:
    """Raises MalformedEvents if the payload, or an event of known name in it, cannot be read."""
    try:
        batch = _BATCH.decode(payload)
    except msgspec.ValidationError:
        return _decode_one_by_one(payload)
    except _UNREADABLE:
        raise MalformedEvents("a payload is no msgpack") from None
    return EventBatch(batch.timestamp, batch.events, batch.dp_rank)


def engine_hash(value: Hash) -> int:
    """One unsigned 64-bit integer for each form: vLLM's own integer form is the last 8 bytes of the digest."""
    if isinstance(value, int):
        return value & _HASH_MASK
    return int.from_bytes(value[-8:], "big")


def _decode_one_by_one(payload: bytes) -> EventBatch:
    """The tolerant way: array events, and batches in which some event is unknown."""
    try:
        batch = _RAW_BATCH.decode(payload)
    except _UNREADABLE:
        raise MalformedEvents("a payload is no batch of events") from None
    events = []
    for raw in batch.events:
        event = _decode_event(raw)
        if event is not None:
            events.append(event)
    return EventBatch(batch.timestamp, events, batch.dp_rank, len(batch.events) - len(events))


def _decode_event(raw: Raw) -> Event | None:
    """None for an event of unknown name."""
    first = bytes(raw)[0]
    try:
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            event: Event = _MAP_EVENT.decode(raw)
            return event
        return _from_array(_ARRAY_EVENT.decode(raw))
    except _UNREADABLE:
        name = _name(raw)
        if name is None or name in _NAMES:
            raise MalformedEvents("an event cannot be read") from None
        return None


def _name(raw: Raw) -> str | None:
    """What an event calls itself; None if it is no event at all."""
    try:
        value = _ANY.decode(raw)
    except _UNREADABLE:
        return None
    if isinstance(value, list):
        name = value[0] if value else None
    else:
        name = value.get("type") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None


def _from_array(event: _ArrayStored | _ArrayRemoved | _ArrayCleared) -> Event:
    if isinstance(event, _ArrayStored):
        return BlockStored(*msgspec.structs.astuple(event))
    if isinstance(event, _ArrayRemoved):
        return BlockRemoved(*msgspec.structs.astuple(event))
    return AllBlocksCleared()
