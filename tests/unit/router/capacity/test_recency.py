"""What would be evicted next is known from what was sent and what ended."""

from router.capacity.recency import Recency


def chain(first: int, blocks: int) -> list[int]:
    return list(range(first, first + blocks))


def test_held_blocks_count_once_however_many_requests_share_them() -> None:
    recency = Recency(block_size=16, capacity_tokens=64 * 512)
    prompt = recency.sample(chain(0, 320))
    assert len(prompt) == 10
    recency.take(prompt)
    recency.take(prompt)
    assert recency.held_tokens == 10 * 512
    recency.release(prompt, 1.0)
    assert recency.held_tokens == 10 * 512
    recency.release(prompt, 2.0)
    assert recency.held_tokens == 0
    assert recency.free_tokens == 54 * 512


def test_an_empty_cache_has_no_coldest_block() -> None:
    assert Recency(block_size=512, capacity_tokens=100 * 512).coldest_at is None


def test_the_coldest_block_is_the_one_released_first_and_not_used_since() -> None:
    recency = Recency(block_size=512, capacity_tokens=100 * 512)
    for at, first in ((1.0, 0), (2.0, 100)):
        recency.take(chain(first, 10))
        recency.release(chain(first, 10), at)
    assert recency.coldest_at == 1.0
    recency.take(chain(0, 10))
    assert recency.coldest_at == 2.0


def test_a_full_cache_gives_up_its_coldest_blocks_and_never_held_ones() -> None:
    recency = Recency(block_size=512, capacity_tokens=20 * 512)
    recency.take(chain(0, 10))
    recency.release(chain(0, 10), 1.0)
    recency.take(chain(100, 15))
    assert recency.held_tokens == 15 * 512
    assert recency.free_tokens == 0
    # Its tail goes first: five blocks of the head are left.
    recency.take(chain(0, 5))
    assert recency.coldest_at is None


def test_what_answers_will_need_is_held_too() -> None:
    recency = Recency(block_size=512, capacity_tokens=20 * 512)
    recency.reserved += 1000
    assert recency.held_tokens == 1000
    assert recency.free_tokens == 20 * 512 - 1000
