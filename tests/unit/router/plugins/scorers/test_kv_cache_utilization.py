from router.plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from tests.support.scheduling import candidate, context


def test_the_score_is_the_free_share_and_unknown_is_neutral() -> None:
    candidates = [candidate(kv_usage=0.25), candidate(kv_usage=1.0), candidate(running=1), candidate()]
    assert KvCacheUtilizationScorer().score(context(), candidates) == [0.75, 0.0, 0.5, 0.5]
