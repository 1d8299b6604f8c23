import pytest

from router.errors import ConfigError
from router.plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from tests.support.scheduling import candidate, context, ids, prompt

ASKED = context(prompt(10))


def test_those_that_hold_enough_of_the_prompt_stay() -> None:
    candidates = [candidate("warm", matched=8), candidate("cool", matched=7), candidate("cold")]
    assert ids(PrefixCacheAffinityFilter().filter(ASKED, candidates)) == ["warm"]


def test_nobody_warm_or_nothing_to_hash_keeps_all() -> None:
    candidates = [candidate("a", matched=7), candidate("b")]
    assert ids(PrefixCacheAffinityFilter().filter(ASKED, candidates)) == ["a", "b"]
    assert ids(PrefixCacheAffinityFilter().filter(context(prompt(0)), candidates)) == ["a", "b"]


@pytest.mark.parametrize(("ahead", "kept"), [(1000, ["warm"]), (1001, ["warm", "cold"])])
def test_affinity_breaks_when_the_warm_are_too_far_behind_in_time(ahead: int, kept: list[str]) -> None:
    sticky = PrefixCacheAffinityFilter.create({"maxTTFTPenaltyMs": 1000, "peakPrefillThroughput": 1000})
    candidates = [candidate("warm", matched=10, prefill_tokens=500 + ahead), candidate("cold", prefill_tokens=500)]
    assert ids(sticky.filter(ASKED, candidates)) == kept


def test_affinity_breaks_at_a_number_of_tokens_too_and_zero_switches_both_off() -> None:
    candidates = [candidate("warm", matched=10, prefill_tokens=10**9), candidate("cold")]
    by_tokens = PrefixCacheAffinityFilter(max_ttft_penalty_ms=0, max_tokens_in_flight_penalty=100)
    never = PrefixCacheAffinityFilter(max_ttft_penalty_ms=0)
    assert ids(by_tokens.filter(ASKED, candidates)) == ["warm", "cold"]
    assert ids(never.filter(ASKED, candidates)) == ["warm"]


def test_exploration_lets_go_with_its_probability() -> None:
    candidates = [candidate("warm", matched=10), candidate("cold")]
    exploring = PrefixCacheAffinityFilter(exploration_probability=0.25)
    let_go = sum(len(exploring.filter(context(prompt(10), seed=i), candidates)) == 2 for i in range(400))
    assert 60 < let_go < 140


def test_a_latency_predictor_is_refused() -> None:
    with pytest.raises(ConfigError, match="ttftSource"):
        PrefixCacheAffinityFilter.create({"ttftSource": "latencyPredictor"})
