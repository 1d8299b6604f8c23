"""BlockCache: the prefix cache of one engine, or one that several share, addressed by content. PURE.

The laws are those of `loadtest.simulator.blocks` (vLLM's), told by block ids of a trace in the place of hashes: a hit
needs a chain of full blocks from the start; released blocks go to the end of the free queue, a request's tail first,
and keep their content until they are taken for something else. One simplification: a block that is computed while an
equal one is cached stays private to its request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Change = tuple[bool, list[int]]
"""(True, blocks stored) or (False, blocks removed)."""

PRIVATE = -1
"""A held block whose content nobody else can use: not full, of the answer, or a copy of a cached one."""


class BlockCache:
    """`capacity` blocks of `block_size` tokens. Block ids are non-negative integers."""

    __slots__ = ("_changes", "_free", "_named", "_refs", "_virgin", "block_size", "capacity", "reserved")

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self.reserved = 0
        """Blocks promised to running requests and not taken yet."""
        self._virgin = capacity
        self._free: OrderedDict[int, None] = OrderedDict()
        self._refs: dict[int, int] = {}
        self._named = 0
        self._changes: list[Change] = []

    @property
    def free_blocks(self) -> int:
        return self._virgin + len(self._free)

    @property
    def used_fraction(self) -> float:
        """Share of the blocks that running or pinned requests hold, 0..1."""
        return 1.0 - self.free_blocks / self.capacity

    def match(self, chain: Sequence[int]) -> int:
        """Leading blocks of the chain that are cached. Takes nothing."""
        refs, free = self._refs, self._free
        for count, block in enumerate(chain):
            if block not in refs and block not in free:
                return count
        return len(chain)

    def unheld(self, blocks: Sequence[int]) -> int:
        """How many of these cached blocks are free now, and so would leave the free queue when touched."""
        free = self._free
        return sum(1 for block in blocks if block in free) if free else 0

    def touch(self, blocks: Sequence[int]) -> None:
        """Take cached blocks for one more request."""
        refs, free = self._refs, self._free
        for block in blocks:
            count = refs.get(block)
            if count is None:
                del free[block]
                refs[block] = 1
            else:
                refs[block] = count + 1

    def allocate(self, count: int) -> None:
        """Take `count` free blocks, least recently used first. There must be as many."""
        fresh = min(count, self._virgin)
        self._virgin -= fresh
        pop = self._free.popitem
        evicted = [pop(last=False)[0] for _ in range(count - fresh)]
        removed = [block for block in evicted if block >= 0]
        if removed:
            self._note(False, removed)

    def publish(self, held: list[int], first: int, blocks: Sequence[int]) -> None:
        """The private blocks of `held` from `first` on are full now and hold `blocks`."""
        refs, free = self._refs, self._free
        stored = []
        for place, block in enumerate(blocks, first):
            if block not in refs and block not in free:
                refs[block] = 1
                held[place] = block
                stored.append(block)
        if stored:
            self._note(True, stored)

    def release(self, held: Sequence[int]) -> None:
        """Give a request's blocks back, in the request's order: its tail will be reused first."""
        refs, free = self._refs, self._free
        for block in reversed(held):
            if block == PRIVATE:
                self._named -= 1
                free[self._named - 1] = None
                continue
            left = refs[block] - 1
            if left:
                refs[block] = left
            else:
                del refs[block]
                free[block] = None

    def take_changes(self) -> list[Change]:
        """What was stored and removed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def cached(self) -> set[int]:
        """Every block id in the cache."""
        return {*self._refs, *(block for block in self._free if block >= 0)}

    def copy(self) -> BlockCache:
        twin = BlockCache(self.capacity, self.block_size)
        twin.reserved, twin._virgin, twin._named = self.reserved, self._virgin, self._named
        twin._free, twin._refs = self._free.copy(), self._refs.copy()
        return twin

    def _note(self, stored: bool, blocks: list[int]) -> None:
        changes = self._changes
        if changes and changes[-1][0] is stored:
            changes[-1][1].extend(blocks)
        else:
            changes.append((stored, blocks))
