"""Recorded KV-event streams of a real vLLM, and an independent model of what they imply.

The small captures lie in ``tests/fixtures``; with KVROUTER_FIXTURES naming a folder of more, its ``kv_events`` are
read as well. A capture has one message a line: ``frames_hex`` as sent, and for most a decoded copy beside it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvindex import Tier
from kvindex.events import Message, decode_frames
from tests.support.kvindex import reference_hashes, reference_root

MODEL = "tiny"
BLOCK_SIZE = 32
_MEDIUM = {"GPU": Tier.DEVICE, "CPU": Tier.HOST, "STORAGE": Tier.STORAGE}


class Capture(NamedTuple):
    path: Path

    def messages(self) -> list[Message]:
        return [message for message, _ in self.decoded() if message.sequence >= 0]

    def decoded(self) -> list[tuple[Message, list[Any]]]:
        """Each message with its events as plain JSON-like values, read without the code under test."""
        pairs = []
        for line in self.path.read_text().splitlines():
            record = json.loads(line)
            frames = [bytes.fromhex(frame) for frame in record["frames_hex"]]
            message = decode_frames(frames[-3:])
            if message.sequence < 0:
                continue
            body = record.get("decoded") or msgspec.msgpack.decode(frames[-1])
            pairs.append((message, body[1]))
        return pairs

    def requests(self) -> list[dict[str, Any]]:
        path = self.path.with_name(self.path.name.removesuffix(".jsonl") + ".requests.json")
        return json.loads(path.read_text()) if path.exists() else []


def captures() -> list[Capture]:
    folders = [Path(__file__).parents[1] / "fixtures" / "vllm" / "kv_events"]
    extra = os.environ.get("KVROUTER_FIXTURES")
    if extra:
        folders.append(Path(extra) / "kv_events")
    found = {path.name: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.jsonl"))}
    return [Capture(path) for path in found.values()]


class _Content(NamedTuple):
    lora: str | None
    salt: str | None
    tokens: tuple[int, ...]


class ImpliedState:
    """What decoded events say an engine holds, by token content, worked out the plain way."""

    def __init__(self) -> None:
        self.contents: dict[str, _Content] = {}
        self.counts: dict[Tier, Counter[str]] = {tier: Counter() for tier in Tier}
        self.unknown = 0
        self._keys: dict[_Content, int] = {}

    def apply(self, events: list[Any]) -> None:
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.counts[Tier.DEVICE].clear()
                continue
            tier = _MEDIUM[event["medium"]]
            names = [_name(value) for value in event["block_hashes"]]
            if event["type"] == "BlockRemoved":
                for name in names:
                    self.counts[tier][name] -= 1
                    assert self.counts[tier][name] >= 0
                continue
            self._learn(event, names)
            for name in names:
                if name in self.contents:
                    self.counts[tier][name] += 1
                else:
                    self.unknown += 1

    def _learn(self, event: dict[str, Any], names: list[str]) -> None:
        if not event["token_ids"]:
            return
        size = event["block_size"]
        salt = None
        if event["parent_block_hash"] is None:
            extras = (event.get("extra_keys") or [None])[0] or []
            salts = [extra for extra in extras if extra != event["lora_name"]]
            salt = salts[0] if salts else None
            content = _Content(event["lora_name"], salt, ())
        else:
            content = self.contents[_name(event["parent_block_hash"])]
        for i, name in enumerate(names):
            piece = tuple(event["token_ids"][i * size : (i + 1) * size])
            content = content._replace(tokens=content.tokens + piece)
            self.contents[name] = content

    def keys(self, tier: Tier) -> set[int]:
        return {self._key(self.contents[name]) for name, count in self.counts[tier].items() if count > 0}

    def _key(self, content: _Content) -> int:
        if content not in self._keys:
            root = reference_root(MODEL, content.lora)
            self._keys[content] = reference_hashes(content.tokens, BLOCK_SIZE, root, content.salt)[-1]
        return self._keys[content]


def _name(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["__bytes_hex__"])
    return value.hex() if isinstance(value, bytes) else str(value)


class SetSink:
    """An index that is three sets an endpoint, and the log of all keys ever stored."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, Tier], set[int]] = {}
        self.ever: set[int] = set()

    def store(self, endpoint: str, keys: list[int], tier: Tier, /) -> None:
        self.held.setdefault((endpoint, tier), set()).update(keys)
        self.ever.update(keys)

    def remove(self, endpoint: str, keys: list[int], tier: Tier, /) -> None:
        held = self.held.setdefault((endpoint, tier), set())
        assert held.issuperset(keys), "removed what was not stored"
        held.difference_update(keys)

    def clear(self, endpoint: str, tier: Tier | None, /) -> None:
        for each in Tier if tier is None else [tier]:
            self.held.pop((endpoint, each), None)

    def keys(self, endpoint: str, tier: Tier) -> set[int]:
        return self.held.get((endpoint, tier), set())
