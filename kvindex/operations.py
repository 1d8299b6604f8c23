"""What KV events ask of an index, as values. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from kvindex.events import Tier


class Store(msgspec.Struct, gc=False):
    keys: list[int]
    tier: Tier


class Remove(msgspec.Struct, gc=False):
    keys: list[int]
    tier: Tier


class Clear(msgspec.Struct, frozen=True, gc=False):
    tier: Tier | None
    """None: everything known of the endpoint."""


class Resync(msgspec.Struct, frozen=True):
    """Ask the engine's replay socket for every message from this sequence on."""

    from_sequence: int
    reason: str
    """A short word from a bounded set, used as a metric label."""


Operation = Store | Remove | Clear | Resync


class OperationLog:
    """Operations in order; neighbours of one kind and tier become one."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Operation] = []

    def store(self, keys: Iterable[int], tier: Tier) -> None:
        last = self.items[-1] if self.items else None
        if type(last) is Store and last.tier is tier:
            last.keys.extend(keys)
        else:
            self.items.append(Store(list(keys), tier))

    def remove(self, keys: Iterable[int], tier: Tier) -> None:
        last = self.items[-1] if self.items else None
        if type(last) is Remove and last.tier is tier:
            last.keys.extend(keys)
        else:
            self.items.append(Remove(list(keys), tier))

    def clear(self, tier: Tier | None) -> None:
        self.items.append(Clear(tier))


class Sink(Protocol):
    """The part of an index that operations reach."""

    def store(self, endpoint: str, keys: list[int], tier: Tier, /) -> None: ...
    def remove(self, endpoint: str, keys: list[int], tier: Tier, /) -> None: ...
    def clear(self, endpoint: str, tier: Tier | None, /) -> None: ...


def apply_operations(operations: Iterable[Operation], sink: Sink, endpoint: str) -> Resync | None:
    """Applies them in order; returns the last Resync among them, which is the caller's to carry out."""
    resync = None
    for operation in operations:
        if isinstance(operation, Store):
            sink.store(endpoint, operation.keys, operation.tier)
        elif isinstance(operation, Remove):
            sink.remove(endpoint, operation.keys, operation.tier)
        elif isinstance(operation, Clear):
            sink.clear(endpoint, operation.tier)
        else:
            resync = operation
    return resync
