from router.plugins.scorers.token_load import TokenLoadScorer
from tests.support.scheduling import BLOCK, candidate, context, prompt


def test_what_waits_and_what_this_prompt_adds_both_count() -> None:
    scorer = TokenLoadScorer(queue_threshold_tokens=20 * BLOCK)
    warm = candidate(matched=10, prefill_tokens=10 * BLOCK)
    cold = candidate(matched=0, prefill_tokens=0)
    full = candidate(matched=0, prefill_tokens=100 * BLOCK)
    assert scorer.score(context(prompt(10)), [warm, cold, full]) == [0.5, 0.5, 0.0]


def test_a_match_longer_than_the_prompt_adds_nothing() -> None:
    assert TokenLoadScorer().score(context(prompt(4, token_count=10)), [candidate(matched=4)]) == [1.0]
