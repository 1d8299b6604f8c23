from collections import Counter

from router.plugins.scorers.no_hit_lru import NoHitLruScorer
from tests.support.scheduling import candidate, context, prompt

POOL = [candidate(f"10.0.0.{i}:8000") for i in range(5)]


def test_cold_prompts_rank_the_endpoints_from_one_to_zero() -> None:
    assert sorted(NoHitLruScorer().score(context(prompt(3)), POOL)) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_same_cold_prompt_has_the_same_order_and_different_ones_spread() -> None:
    def first(seed: int) -> int:
        return NoHitLruScorer().score(context(prompt(3, seed=seed)), POOL).index(1.0)

    assert first(7) == first(7)
    counts = Counter(first(seed) for seed in range(500))
    assert min(counts.values()) > 60


def test_a_warm_or_blockless_prompt_has_no_preference() -> None:
    warm = [*POOL[1:], candidate("w", matched=1)]
    assert NoHitLruScorer().score(context(prompt(3)), warm) == [0.5] * 5
    assert NoHitLruScorer().score(context(prompt(0)), POOL) == [0.5] * 5
    assert NoHitLruScorer().score(context(prompt(3)), POOL[:1]) == [0.5]
