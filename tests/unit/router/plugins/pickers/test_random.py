from collections import Counter

from router.plugins.pickers.random_ import RandomPicker
from tests.support.scheduling import candidate, context, ids

POOL = [candidate("a"), candidate("b"), candidate("c")]


def test_everybody_comes_first_equally_often_whatever_the_scores() -> None:
    picks = [RandomPicker().pick(context(seed=s), POOL, [9.0, 0.0, 0.0]) for s in range(600)]
    assert all(sorted(ids(picked)) == ["a", "b", "c"] for picked in picks)
    assert min(Counter(picked[0].id for picked in picks).values()) > 140
    assert len(RandomPicker(max_num_of_endpoints=2).pick(context(), POOL, [0.0] * 3)) == 2
