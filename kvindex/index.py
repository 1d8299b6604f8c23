"""What a KV index is: its words, its protocol, its statistics. PURE.

The index answers one question: for this chain of block hashes, how many leading blocks does each endpoint hold, and
how many of those in device memory? Two implementations, `kvindex.memory` and `kvindex.redis_index`, keep one contract
(``tests/contract/test_block_index.py``).

Where entries come from depends on the endpoint's `Mode`. An EXACT endpoint is fed by its engine's KV events (`store`,
`remove`, `clear`); what was dispatched to it and not yet reported is a speculative entry with a short time to live.
An APPROXIMATE endpoint sends no events, or lost some: there the dispatches themselves are the best knowledge, so
`speculate` records them in a history, a least-recently-used list as long as the engine's cache, which expires slowly.
Events that do arrive for an approximate endpoint are applied beside its history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from kvindex.events import Tier as Tier


class Mode(StrEnum):
    """Where an endpoint's entries come from."""

    EXACT = "exact"
    """From the engine's KV events, without a gap."""
    APPROXIMATE = "approximate"
    """From what was dispatched to it; the mode of an endpoint that nothing is known about."""


class Match(msgspec.Struct, frozen=True):
    """Leading blocks of one chain that one endpoint holds."""

    blocks: int
    """In any tier, speculative and history included."""
    device: int
    """Of these, leading blocks in device memory, speculative or in the history: nothing has to be fetched."""


class IndexStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for metrics; cheap enough to be taken at every scrape."""

    blocks: Mapping[str, Mapping[Tier, int]]
    """Endpoint id -> tier -> blocks that the engine's events say it holds."""
    keys: int
    """Distinct block hashes."""
    speculative: int
    """Speculative entries over all endpoints."""
    history: int
    """History entries over all approximate endpoints."""
    bytes_estimate: int
    """Memory of the index's own tables and keys, in bytes."""
    sweeping: int = 0
    """Entries of cleared or dropped endpoints whose memory is still to be reclaimed; lookups no longer see them."""
    shed: int = 0
    """Endpoints emptied so far because the whole index reached its bound."""
    stale: bool = False
    """True while a shared index cannot be reached and this process goes on from its own memory."""


class BlockIndex(Protocol):
    """Endpoint ids are any strings; keys are 64-bit block hashes of `kvindex.hashing`, a chain in order.

    No method raises for what it is told: unknown endpoints and keys are created or ignored, whichever makes sense.
    No method waits: implementations that share their state do so in the background.
    """

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        """Endpoint id -> leading blocks of `keys` it holds; an endpoint that lacks the first block is absent."""
        ...

    def store(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        """The engine reports blocks in a tier; storing what is there changes nothing. In the device tier it also
        confirms, and so ends, speculative entries of these keys."""
        ...

    def remove(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        """The engine dropped blocks from one tier; the other tiers, speculation and history stay."""
        ...

    def clear(self, endpoint: str, tier: Tier | None) -> None:
        """The engine emptied a tier. None: everything known of the endpoint, speculation and history included."""
        ...

    def drop(self, endpoint: str) -> None:
        """Forget the endpoint, its mode and capacities with it."""
        ...

    def speculate(self, endpoint: str, keys: Sequence[int], ttl_s: float) -> None:
        """The chain was dispatched: count it as held for `ttl_s` seconds, or until an event says more.

        For an approximate endpoint the same as `record`.
        """
        ...

    def record(self, endpoint: str, keys: Sequence[int]) -> None:
        """The chain passed through an approximate endpoint: newest in its history. Ignored for an exact one."""
        ...

    def set_mode(self, endpoint: str, mode: Mode) -> None:
        """EXACT forgets the endpoint's history: the engine's own word replaces it."""
        ...

    def mode(self, endpoint: str) -> Mode: ...

    def set_capacity(self, endpoint: str, tier: Tier, blocks: int) -> None:
        """The engine's true number of blocks in a tier, in blocks of the keys' size. DEVICE bounds the history too."""
        ...

    def expire(self) -> None:
        """Drop what is past its time and reclaim memory, a bounded slice a call; to be called about once a second."""
        ...

    def stats(self) -> IndexStats: ...
