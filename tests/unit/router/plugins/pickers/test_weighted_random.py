from collections import Counter
from random import Random

from router.core import Leg
from router.plugins.pickers.weighted_random import WeightedRandomPicker
from router.scheduling.plugins import Context
from tests.support.scheduling import NOW, candidate, ids, prompt, request

POOL = [candidate("a"), candidate("b"), candidate("c")]


def test_chance_is_in_proportion_to_the_score_and_zero_comes_last() -> None:
    asked = Context(request=request(), prompt=prompt(), leg=Leg.DECODE, now=NOW, rng=Random(1))
    picks = [WeightedRandomPicker().pick(asked, POOL, [3.0, 1.0, 0.0]) for _ in range(2000)]
    first = Counter(picked[0].id for picked in picks)
    assert first["c"] == 0
    assert 0.70 < first["a"] / 2000 < 0.80
    assert all(sorted(ids(picked)) == ["a", "b", "c"] and picked[-1].id == "c" for picked in picks)


def test_tiny_scores_do_not_underflow_and_all_zero_is_chance() -> None:
    asked = Context(request=request(), prompt=prompt(), leg=Leg.DECODE, now=NOW, rng=Random(2))
    first = Counter(WeightedRandomPicker().pick(asked, POOL, [1e-300, 1e-300, 0.0])[0].id for _ in range(200))
    assert set(first) == {"a", "b"}
    assert len({WeightedRandomPicker().pick(asked, POOL, [0.0] * 3)[0].id for _ in range(50)}) == 3
