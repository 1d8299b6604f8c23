"""BlockCache: the paged KV cache of one rank: hash-chained full blocks, reference counts, LRU of free ones. PURE.

The rules are vLLM's: a hit needs a chain of full blocks from the start; blocks of a finished request go to the end of
the free queue, its tail first, and keep their content until they are taken for something else; equal blocks computed at
the same time are both kept, so one hash can be stored and removed more than once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from loadtest.simulator.events import CacheEvent, Cleared, Removed, Stored
from loadtest.simulator.hashing import BlockHash, ExtraKeys


class OutOfBlocks(Exception):
    """More blocks were asked for than are free."""


class BlockCache:
    """Blocks are numbered 1..capacity, like an engine that keeps block 0 for itself."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, capacity + 1))
        self._refs: dict[int, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._blocks_of: dict[BlockHash, dict[int, None]] = {}
        self._events: list[CacheEvent] = []

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_fraction(self) -> float:
        """Share of the blocks that running or pinned requests hold, 0..1."""
        return 1 - len(self._free) / self.capacity

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The longest cached chain from the start, as block numbers. Takes nothing."""
        found: list[int] = []
        for value in hashes:
            blocks = self._blocks_of.get(value)
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free now, and so would leave the free queue when touched."""
        return sum(1 for block in blocks if block in self._free)

    def touch(self, blocks: Sequence[int]) -> None:
        """Take cached blocks for one more request."""
        for block in blocks:
            self._free.pop(block, None)
            self._refs[block] = self._refs.get(block, 0) + 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks of undefined content, the least recently used first.

        Raises OutOfBlocks and then takes none.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._evict(block)
            self._refs[block] = 1
            taken.append(block)
        return taken

    def fill(
        self,
        blocks: Sequence[int],
        hashes: Sequence[BlockHash],
        parent: BlockHash | None,
        token_ids: Sequence[int],
        extra: Sequence[ExtraKeys],
        lora: tuple[int, str] | None = None,
        session_id: str | None = None,
    ) -> None:
        """The held `blocks` are full now and hold the chain `hashes` behind `parent`; `token_ids` are those of all of
        them.
        """
        for block, value in zip(blocks, hashes, strict=True):
            self._hash_of[block] = value
            self._blocks_of.setdefault(value, {})[block] = None
        lora_id, lora_name = lora or (None, None)
        event = Stored(
            hashes=tuple(hashes),
            parent=parent,
            token_ids=tuple(token_ids),
            block_size=self.block_size,
            extra=tuple(extra),
            lora_id=lora_id,
            lora_name=lora_name,
            session_id=session_id,
        )
        self._events.append(event)

    def release(self, blocks: Sequence[int]) -> None:
        """Give a request's blocks back, in the request's order: its tail will be reused first."""
        for block in reversed(blocks):
            left = self._refs[block] - 1
            if left:
                self._refs[block] = left
            else:
                del self._refs[block]
                self._free[block] = None

    def reset(self) -> bool:
        """Forget all content. False, and nothing happens, while any block is held (as in vLLM)."""
        if self._refs:
            return False
        self._hash_of.clear()
        self._blocks_of.clear()
        self._events.append(Cleared())
        return True

    def cached_hashes(self) -> dict[BlockHash, int]:
        """Every hash in the cache with the number of blocks that hold it."""
        return {value: len(blocks) for value, blocks in self._blocks_of.items()}

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def put_back(self, events: Sequence[CacheEvent]) -> None:
        """Events that were taken and are to come with the next ones."""
        self._events[:0] = events

    def _evict(self, block: int) -> None:
        value = self._hash_of.pop(block, None)
        if value is None:
            return
        blocks = self._blocks_of[value]
        del blocks[block]
        if not blocks:
            del self._blocks_of[value]
        self._events.append(Removed(value))
