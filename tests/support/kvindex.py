"""Independent references and fakes for the KV index tests; nothing here uses the code under test's own algorithms."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from kvindex import Match, Mode, Tier
from kvindex.events import Message

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotl(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & _MASK


def _round(acc: int, lane: int) -> int:
    return (_rotl((acc + lane * _P2) & _MASK, 31) * _P1) & _MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0, written from its specification in plain integers."""
    end = len(data)
    at = 0
    if end >= 32:
        accs = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= end:
            accs = [_round(acc, lane) for acc, lane in zip(accs, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        h = sum(_rotl(acc, bits) for acc, bits in zip(accs, (1, 7, 12, 18), strict=True)) & _MASK
        for acc in accs:
            h = ((h ^ _round(0, acc)) * _P1 + _P4) & _MASK
    else:
        h = _P5
    h = (h + end) & _MASK
    while at + 8 <= end:
        h = (_rotl(h ^ _round(0, struct.unpack_from("<Q", data, at)[0]), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= end:
        h = (_rotl(h ^ (struct.unpack_from("<I", data, at)[0] * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        h = (_rotl(h ^ (byte * _P5 & _MASK), 11) * _P1) & _MASK
    h = ((h ^ (h >> 33)) * _P2) & _MASK
    h = ((h ^ (h >> 29)) * _P3) & _MASK
    return h ^ (h >> 32)


def tagged(kind: str, value: bytes) -> bytes:
    name = kind.encode()
    return struct.pack("<I", len(name)) + name + struct.pack("<I", len(value)) + value


def reference_root(model: str, lora: str | None = None) -> int:
    data = tagged("kvrouter-chain", b"") + tagged("model", model.encode())
    if lora is not None:
        data += tagged("lora", lora.encode())
    return xxh64(data)


def reference_hashes(tokens: Sequence[int], block_size: int, root: int, salt: str | None = None) -> list[int]:
    """The chain as its definition reads."""
    hashes: list[int] = []
    parent = root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        data = struct.pack("<Q", parent)
        for token in tokens[start : start + block_size]:
            data += struct.pack("<I", token)
        if salt and start == 0:
            data += tagged("salt", salt.encode())
        parent = xxh64(data)
        hashes.append(parent)
    return hashes


class Clock:
    """Monotonic seconds that move when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class NaiveIndex:
    """The index as sets, one per endpoint and kind of entry: slow, and obviously right."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tiers: dict[tuple[str, Tier], set[int]] = {}
        self.speculative: dict[str, dict[int, float]] = {}
        self.history: dict[str, set[int]] = {}
        self.exact: set[str] = set()

    def store(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        self.tiers.setdefault((endpoint, tier), set()).update(keys)
        if tier is Tier.DEVICE:
            for key in keys:
                self.speculative.get(endpoint, {}).pop(key, None)

    def remove(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        self.tiers.get((endpoint, tier), set()).difference_update(keys)

    def clear(self, endpoint: str, tier: Tier | None) -> None:
        for each in Tier if tier is None else [tier]:
            self.tiers.pop((endpoint, each), None)
        if tier is None:
            self.speculative.pop(endpoint, None)
            self.history.pop(endpoint, None)

    def drop(self, endpoint: str) -> None:
        self.clear(endpoint, None)
        self.exact.discard(endpoint)

    def speculate(self, endpoint: str, keys: Sequence[int], ttl_s: float) -> None:
        if endpoint not in self.exact:
            self.record(endpoint, keys)
            return
        entries = self.speculative.setdefault(endpoint, {})
        for key in keys:
            if key not in self.tiers.get((endpoint, Tier.DEVICE), set()):
                entries[key] = max(entries.get(key, 0.0), self.clock() + ttl_s)

    def record(self, endpoint: str, keys: Sequence[int]) -> None:
        if endpoint not in self.exact:
            self.history.setdefault(endpoint, set()).update(keys)

    def set_mode(self, endpoint: str, mode: Mode) -> None:
        if mode is Mode.EXACT:
            self.exact.add(endpoint)
            self.history.pop(endpoint, None)
        else:
            self.exact.discard(endpoint)

    def expire(self) -> None:
        for entries in self.speculative.values():
            for key in [key for key, ends in entries.items() if ends <= self.clock()]:
                del entries[key]

    def endpoints(self) -> set[str]:
        return {endpoint for endpoint, _ in self.tiers} | set(self.speculative) | set(self.history)

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        matches = {}
        for endpoint in self.endpoints():
            near = self.tiers.get((endpoint, Tier.DEVICE), set()) | set(self.speculative.get(endpoint, {}))
            near |= self.history.get(endpoint, set())
            far = self.tiers.get((endpoint, Tier.HOST), set()) | self.tiers.get((endpoint, Tier.STORAGE), set())
            blocks = leading(keys, near | far)
            if blocks:
                matches[endpoint] = Match(blocks, leading(keys, near))
        return matches


def leading(keys: Sequence[int], held: set[int]) -> int:
    count = 0
    for key in keys:
        if key not in held:
            break
        count += 1
    return count


def stored(
    hashes: Sequence[int | bytes],
    tokens: Sequence[int],
    block_size: int,
    parent: int | bytes | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A BlockStored event as vLLM 0.32 writes it."""
    event = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
    }
    return event | fields


def tier_stored(hashes: Sequence[int], medium: str, **fields: Any) -> dict[str, Any]:
    """A BlockStored event without content, as offloading connectors write it."""
    event = stored(hashes, [], 0, medium=medium, group_idx=0)
    del event["extra_keys"]
    return event | fields


def removed(hashes: Sequence[int | bytes], medium: str = "GPU", **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium} | fields


CLEARED = {"type": "AllBlocksCleared"}


def message(sequence: int, *events: Any, timestamp: float | None = None, dp_rank: int | None = 0) -> Message:
    """A message whose timestamp rises with its sequence unless told otherwise."""
    at = 1000.0 + sequence if timestamp is None else timestamp
    return Message(b"kv", sequence, msgspec.msgpack.encode([at, list(events), dp_rank]))
