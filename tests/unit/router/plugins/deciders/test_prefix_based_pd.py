from typing import Any

import pytest

from router.plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from tests.support.scheduling import BLOCK, candidate, context, prompt


@pytest.mark.parametrize(
    ("parameters", "blocks", "tail", "matched", "reason"),
    [
        ({}, 100, 0, 0, "pd-never"),
        ({"nonCachedTokens": 4 * BLOCK}, 3, 15, 0, "pd-short"),
        ({"nonCachedTokens": 4 * BLOCK}, 4, 0, 0, "pd"),
        ({"nonCachedTokens": 4 * BLOCK}, 10, 0, 6, "pd"),
        ({"nonCachedTokens": 4 * BLOCK}, 10, 0, 7, "pd-cached"),
        ({"nonCachedTokens": 1, "promptTokens": 11 * BLOCK}, 10, 15, 0, "pd-short"),
        ({"nonCachedTokens": 1, "promptTokens": 11 * BLOCK}, 11, 0, 10, "pd"),
    ],
)
def test_uncached_and_total_tokens_decide(
    parameters: dict[str, Any], blocks: int, tail: int, matched: int, reason: str
) -> None:
    verdict = PrefixBasedPdDecider.create(parameters).decide(
        context(prompt(blocks, tail=tail)), candidate(matched=matched)
    )
    assert (verdict.reason, verdict.disaggregate) == (reason, reason == "pd")
