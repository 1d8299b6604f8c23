from __future__ import annotations

import random
from itertools import product

import pytest

from loadtest.replay.cache import BlockCache
from loadtest.replay.clairvoyant import Arrival, Moment, look_ahead, total_ttft
from loadtest.replay.engine import Engine
from loadtest.replay.job import Job
from loadtest.replay.plan import Plan, run_one
from tests.support.replay import PROFILE, SIZE, ask, workload


class Silent:
    def first_token(self, job: Job, now: float) -> None: ...

    def finished(self, job: Job, now: float) -> None: ...

    def load(self, engine: Engine, job: Job, now: float) -> None: ...

    def changed(self, engine: Engine, changes: object, now: float) -> None: ...


def engines(count: int, rng: random.Random) -> dict[str, Engine]:
    """With work of their own, and some prompts in their caches."""
    made = {}
    for number in range(count):
        engine = Engine(f"e{number}", PROFILE, BlockCache(200, SIZE), Silent())
        for job in range(rng.randrange(4)):
            chain = list(range(1000 * rng.randrange(4), 1000 * rng.randrange(4) + 30))[:30]
            engine.submit(Job(("before", job), chain, len(chain) * SIZE + 1, rng.randint(1, 40)), 0.1 * job)
        while engine.due <= 1.0:
            engine.fire()
        engine.advance(1.0)
        made[engine.name] = engine
    return made


def window(count: int, rng: random.Random) -> list[Arrival]:
    at, arrivals = 1.0, []
    for number in range(count):
        at += rng.random() * 0.2
        start = 1000 * rng.randrange(4)
        arrivals.append(Arrival(at, ask(number, at, range(start, start + rng.randint(5, 40)))))
    return arrivals


@pytest.mark.parametrize("seed", range(12))
def test_on_windows_small_enough_to_enumerate_the_search_finds_nearly_the_best_placing(seed: int) -> None:
    rng = random.Random(seed)
    pool, arrivals = engines(3, rng), window(5, rng)
    best = min(
        sum(
            total_ttft(engine, [a for a, place in zip(arrivals, places, strict=True) if place == name])
            for name, engine in pool.items()
        )
        for places in product(pool, repeat=len(arrivals))
    ) / len(arrivals)
    outlook = look_ahead(Moment(0, pool), arrivals, ["e0"] * len(arrivals), rng)
    assert best - 1e-9 <= outlook.best <= 1.1 * best
    assert outlook.best <= outlook.chosen


def test_looking_ahead_leaves_the_engines_as_they_were() -> None:
    rng = random.Random(5)
    pool, arrivals = engines(2, rng), window(6, rng)
    moment = Moment(0, pool)
    once = look_ahead(moment, arrivals, ["e0"] * 6, random.Random(1))
    assert look_ahead(moment, arrivals, ["e0"] * 6, random.Random(1)) == once


def test_a_copied_engine_goes_the_same_way_as_its_original() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        (engine,) = engines(1, rng).values()
        twin = engine.copy(Silent())
        for _ in range(30):
            assert twin.due == engine.due
            if engine.due < float("inf"):
                engine.fire()
                twin.fire()
        assert (twin.cache.cached(), twin.kv_tokens) == (engine.cache.cached(), engine.kv_tokens)


def test_a_policy_that_knows_nothing_is_further_from_the_clairvoyant_than_one_that_does() -> None:
    rng = random.Random(3)
    load = workload(
        *(ask(n, 0.15 * n, range(100 * rng.randrange(6), 100 * rng.randrange(6) + 560)[:40]) for n in range(300))
    )
    plan = Plan(traces=(), policies=(), engines=4, outlooks=5, outlook_size=12, profiles=("demo",))
    ratios = {}
    for policy in ("random", "lmetric"):
        looks = run_one(plan, load, policy, 1).outlooks
        assert len(looks) == 5
        ratios[policy] = sum(look.chosen for look in looks) / sum(look.best for look in looks)
    assert 1.0 <= ratios["lmetric"] < ratios["random"]
