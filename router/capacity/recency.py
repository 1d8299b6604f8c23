"""Recency: what an engine's cache would evict next, from what this router sent there and what came back. PURE.

KV events tell what is stored and removed, not the order of use. That order is known here: engines free the blocks of
a request when it ends, and evict the least recently freed first. Of each prompt every `stride`-th block is followed
(a block's hash names its position too, so the same prefix is followed at the same blocks); each stands for `unit`
tokens. Without events the same list says what is still cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_UNIT = 512
"""Tokens between two blocks that are followed."""


class Recency:
    """One endpoint. Times are the caller's."""

    __slots__ = ("_free", "_held", "capacity", "reserved", "stride", "unit", "users")

    def __init__(self, block_size: int, capacity_tokens: int) -> None:
        self.stride = max(_UNIT // block_size, 1)
        self.unit = self.stride * block_size
        self.capacity = max(capacity_tokens // self.unit, 1)
        self.reserved = 0
        """Tokens that answers in flight are expected to need."""
        self._held: dict[int, int] = {}
        self.users: Mapping[int, int] = MappingProxyType(self._held)
        """Followed blocks of requests in flight, and how many of these have each. A live view."""
        self._free: OrderedDict[int, float] = OrderedDict()

    def sample(self, block_hashes: Sequence[int]) -> Sequence[int]:
        """The blocks of a prompt that are followed."""
        return block_hashes[self.stride - 1 :: self.stride]

    def take(self, sampled: Sequence[int]) -> None:
        """A request with these blocks was dispatched."""
        held, free = self._held, self._free
        for block in sampled:
            count = held.get(block)
            if count is None:
                free.pop(block, None)
                held[block] = 1
            else:
                held[block] = count + 1
        self._bound()

    def release(self, sampled: Sequence[int], now: float) -> None:
        """It ended: its blocks may be evicted from now on, its tail first."""
        held, free = self._held, self._free
        for block in reversed(sampled):
            left = held.get(block, 1) - 1
            if left:
                held[block] = left
            else:
                held.pop(block, None)
                free[block] = now

    def _bound(self) -> None:
        free = self._free
        while free and len(free) + len(self._held) > self.capacity:
            free.popitem(last=False)

    @property
    def held_tokens(self) -> int:
        return len(self._held) * self.unit + self.reserved

    @property
    def free_tokens(self) -> int:
        """Never filled yet, so far as this router knows."""
        return max((self.capacity - len(self._held) - len(self._free)) * self.unit - self.reserved, 0)

    @property
    def coldest_at(self) -> float | None:
        """When the block that would go next was last used; None when none can go."""
        return next(iter(self._free.values()), None)
