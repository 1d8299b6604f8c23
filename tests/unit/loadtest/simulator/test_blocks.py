"""The block cache keeps vLLM's rules: chains, references, least recently used first, tails before heads."""

from __future__ import annotations

import pytest

from loadtest.simulator.blocks import BlockCache, OutOfBlocks
from loadtest.simulator.events import Cleared, Removed, Stored

A, B, C, D = (bytes([n]) * 32 for n in range(4))


def stored(cache: BlockCache, *hashes: bytes) -> list[int]:
    """A held chain of full blocks."""
    blocks = cache.allocate(len(hashes))
    cache.fill(blocks, hashes, None, [0] * len(hashes) * cache.block_size, [None] * len(hashes))
    return blocks


def test_a_hit_is_the_longest_chain_from_the_start() -> None:
    cache = BlockCache(8, 4)
    blocks = stored(cache, A, B)
    assert cache.match([A, B, C]) == blocks
    assert cache.match([B]) == blocks[1:]
    assert cache.match([C, A]) == []


def test_released_blocks_are_still_found_until_they_are_taken() -> None:
    cache = BlockCache(2, 4)
    cache.release(stored(cache, A, B))
    assert len(cache.match([A, B])) == 2
    cache.allocate(1)
    assert len(cache.match([A, B])) == 1


def test_the_tail_of_a_request_is_reused_first_and_the_oldest_request_before_others() -> None:
    cache = BlockCache(4, 4)
    cache.release(stored(cache, A, B))
    cache.release(stored(cache, C, D))
    cache.take_events()
    cache.allocate(3)
    assert [e.block_hash for e in cache.take_events() if isinstance(e, Removed)] == [B, A, D]


def test_a_touched_block_is_not_taken() -> None:
    cache = BlockCache(2, 4)
    blocks = stored(cache, A)
    cache.release(blocks)
    cache.touch(blocks)
    cache.allocate(1)
    with pytest.raises(OutOfBlocks):
        cache.allocate(1)
    assert cache.match([A]) == blocks


def test_a_block_of_two_requests_is_free_after_the_second_release() -> None:
    cache = BlockCache(1, 4)
    blocks = stored(cache, A)
    cache.touch(blocks)
    cache.release(blocks)
    assert cache.free_blocks == 0
    cache.release(blocks)
    assert cache.free_blocks == 1


def test_equal_blocks_computed_twice_are_stored_and_removed_twice() -> None:
    cache = BlockCache(2, 4)
    first, second = stored(cache, A), stored(cache, A)
    assert cache.cached_hashes() == {A: 2}
    cache.release(first)
    cache.release(second)
    cache.allocate(2)
    events = cache.take_events()
    assert sum(isinstance(e, Stored) for e in events) == sum(isinstance(e, Removed) for e in events) == 2


def test_a_reset_needs_an_idle_cache() -> None:
    cache = BlockCache(2, 4)
    blocks = stored(cache, A)
    assert not cache.reset()
    cache.release(blocks)
    assert cache.reset()
    assert cache.match([A]) == []
    assert cache.take_events()[-1] == Cleared()
