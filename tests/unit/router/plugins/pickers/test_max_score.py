import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.plugins.pickers.max_score import MaxScorePicker
from tests.support.scheduling import candidate, context, ids, prompt

POOL = [candidate(f"10.0.0.{i}:8000") for i in range(6)]


@given(st.lists(st.floats(0, 10), min_size=6, max_size=6))
def test_the_order_is_by_score_and_nobody_is_lost(scores: list[float]) -> None:
    picked = MaxScorePicker().pick(context(prompt(2)), POOL, scores)
    assert sorted(ids(picked)) == ids(POOL)
    by_id = dict(zip(ids(POOL), scores, strict=True))
    ordered = [by_id[i] for i in ids(picked)]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(ordered))


def test_a_cold_prefix_has_one_owner_whatever_the_order_and_the_chance() -> None:
    owners = {
        MaxScorePicker().pick(context(prompt(3), seed=seed), pool, [1.0] * 6)[0].id
        for seed, pool in enumerate((POOL, POOL[::-1], POOL[3:] + POOL[:3]))
    }
    assert len(owners) == 1


def test_cold_prefixes_spread() -> None:
    counts = Counter(MaxScorePicker().pick(context(prompt(3, seed=s)), POOL, [1.0] * 6)[0].id for s in range(600))
    assert len(counts) == 6
    assert min(counts.values()) > 60


def test_behind_a_system_prompt_that_all_hold_the_first_uncached_block_decides() -> None:
    warm = [candidate(c.id, matched=2) for c in POOL]
    # One system prompt of two blocks, then a different third block each.
    shared = prompt(2).block_hashes
    owners = set()
    for s in range(60):
        asked = prompt(3, seed=s + 2)
        asked = type(asked)(
            token_ids=(),
            source=asked.source,
            token_count=asked.token_count,
            block_size=asked.block_size,
            block_hashes=(*shared, asked.block_hashes[2]),
        )
        owners.add(MaxScorePicker().pick(context(asked), warm, [1.0] * 6)[0].id)
    assert len(owners) == 6


def test_without_blocks_the_least_loaded_wins_and_then_chance() -> None:
    pool = [candidate("busy", inflight=3), candidate("idle"), candidate("idler")]
    first = {MaxScorePicker().pick(context(seed=s), pool, [1.0] * 3)[0].id for s in range(20)}
    assert first == {"idle", "idler"}


def test_the_number_of_fallbacks_can_be_limited() -> None:
    assert len(MaxScorePicker(max_num_of_endpoints=2).pick(context(), POOL, [1.0] * 6)) == 2
