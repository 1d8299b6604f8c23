import pytest

from router.plugins.scorers.prefix_cache import PrefixCacheScorer
from tests.support.scheduling import BLOCK, candidate, context, prompt


def test_the_score_is_the_share_of_blocks_held() -> None:
    scores = PrefixCacheScorer().score(context(prompt(8)), [candidate(matched=n) for n in (0, 2, 8)])
    assert scores == [0.0, 0.25, 1.0]


def test_a_prompt_without_a_full_block_scores_nobody() -> None:
    assert PrefixCacheScorer().score(context(prompt(0, tail=5)), [candidate(), candidate()]) == [0.0, 0.0]


def test_match_length_counts_by_what_it_saves() -> None:
    scorer = PrefixCacheScorer(match_length_weight=0.5, match_length_scale_tokens=10 * BLOCK)
    scores = scorer.score(context(prompt(20)), [candidate(matched=5), candidate(matched=20)])
    assert scores == pytest.approx([0.5 * 0.5**2 + 0.5 * 0.25, 1.0])
