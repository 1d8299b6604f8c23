"""The fast engine keeps the laws of the simulated engine's core, step for step."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.replay.cache import BlockCache, Change
from loadtest.replay.engine import Engine
from loadtest.replay.job import Job
from loadtest.simulator import blocks as reference
from loadtest.simulator.engine import EngineCore, Request
from loadtest.simulator.timing import EngineProfile

SIZE = 4
PROFILE = EngineProfile(
    prefill_tokens_per_s=100.0,
    attention_s=1e-4,
    step_s=0.01,
    per_seq_s=0.002,
    per_kv_token_s=1e-4,
    kv_tokens=0,
    chunk=16,
    max_seqs=4,
)


class Log:
    """Listens, and remembers when what came."""

    def __init__(self) -> None:
        self.first: dict[object, float] = {}
        self.ended: dict[object, float] = {}
        self.cached: dict[object, int] = {}
        self.index: set[int] = set()

    def first_token(self, job: Job, now: float) -> None:
        assert job.tag not in self.first
        self.first[job.tag] = now

    def finished(self, job: Job, now: float) -> None:
        self.ended[job.tag] = now
        self.cached[job.tag] = job.cached

    def load(self, engine: Engine, job: Job, now: float) -> None:
        raise AssertionError("nothing is remote here")

    def changed(self, engine: Engine, changes: list[Change], now: float) -> None:
        for stored, blocks in changes:
            for block in blocks:
                assert (block not in self.index) is stored
            self.index = self.index | set(blocks) if stored else self.index - set(blocks)


Plan = list[tuple[float, list[int], int, int]]
"""Arrival, chain of block contents, tokens behind the last full block, answer's tokens."""


def replayed(plan: Plan, capacity: int, *, preemption: bool = False, answers: bool = False) -> tuple[Log, Engine]:
    """Every chain entry stands for its whole prefix, as ids of traces do."""
    log = Log()
    engine = Engine("e", PROFILE, BlockCache(capacity, SIZE), log, preemption=preemption)
    ids: dict[tuple[int, ...], int] = {}
    for number, (at, chain, tail, output) in enumerate(plan):
        while engine.due <= at:
            engine.fire()
        keys = [ids.setdefault(tuple(chain[: i + 1]), len(ids)) for i in range(len(chain))]
        prompt = len(chain) * SIZE + tail
        fills = (prompt + output - 1) // SIZE - prompt // SIZE
        own = [1000 + number * 100 + i for i in range(fills)] if answers else []
        engine.submit(Job(number, keys, prompt, output, output_blocks=own), at)
    while engine.due < math.inf:
        engine.fire()
    return log, engine


def simulated(plan: Plan, capacity: int) -> tuple[dict[object, float], dict[object, float], dict[object, int]]:
    """The same by the simulator's core, one step after the other."""
    core = EngineCore(PROFILE, reference.BlockCache(capacity, SIZE))
    requests = []
    coming = list(enumerate(plan))
    now, step = 0.0, None
    while True:
        if step is None:
            if not coming and not core.num_waiting and not core.num_running:
                break
            step = core.schedule(now)
            if step.empty:
                step = None
                now = coming[0][1][0]
                requests.append(submit(core, *coming.pop(0)))
                continue
        ends = now + step.duration_s
        if coming and coming[0][1][0] < ends:
            requests.append(submit(core, *coming.pop(0)))
            continue
        now = ends
        core.complete(step, now)
        step = None
    return (
        {i: r.first_token_at or 0.0 for i, r in enumerate(requests)},
        {i: r.finished_at or 0.0 for i, r in enumerate(requests)},
        {i: r.cached_tokens for i, r in enumerate(requests)},
    )


def submit(core: EngineCore, number: int, arrival: tuple[float, list[int], int, int]) -> Request:
    at, chain, tail, output = arrival
    prompt = [token for block in chain for token in [block] * SIZE] + [100_000 + number] * tail
    request = Request(str(number), prompt, [200_000 + number] * output)
    core.add(request, at)
    return request


def random_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    at, plan = 0.0, []
    conversations = [[rng.randrange(3)] for _ in range(4)]
    for _ in range(rng.randint(1, 14)):
        at += rng.choice((0.001, 0.2, 1.5)) * rng.uniform(0.5, 1.5)
        chain = rng.choice(conversations)
        chain += [rng.randrange(1000) for _ in range(rng.randrange(4))]
        plan.append((at, list(chain), rng.randint(1, SIZE - 1), rng.randint(1, 30)))
    return plan


@pytest.mark.parametrize("seed", range(150))
def test_tokens_come_when_they_come_in_the_simulated_engine(seed: int) -> None:
    plan = random_plan(seed)
    capacity = max(-(-(len(c) * SIZE + tail + out) // SIZE) for _, c, tail, out in plan) + seed % 40
    log, engine = replayed(plan, capacity)
    first, ended, cached = simulated(plan, capacity)
    assert log.first == pytest.approx(first, rel=1e-9)
    assert log.ended == pytest.approx(ended, rel=1e-9)
    assert log.cached == cached
    assert (engine.running, engine.waiting, engine.cache.reserved) == (0, 0, 0)


@given(seed=st.integers(0, 10_000), spare=st.integers(0, 30), preemption=st.booleans(), answers=st.booleans())
def test_everything_ends_and_every_block_comes_back(seed: int, spare: int, preemption: bool, answers: bool) -> None:
    plan = random_plan(seed)
    capacity = max(-(-(len(c) * SIZE + tail + out) // SIZE) for _, c, tail, out in plan) + spare
    log, engine = replayed(plan, capacity, preemption=preemption, answers=answers)
    assert log.ended.keys() == set(range(len(plan)))
    assert engine.cache.free_blocks == capacity
    assert engine.kv_tokens == 0
    assert log.index == engine.cache.cached()


def test_without_room_for_both_answers_preemption_gives_the_first_its_way() -> None:
    plan: Plan = [(0.0, [1], 1, 20), (0.0, [2], 1, 20)]
    log, engine = replayed(plan, 8, preemption=True)
    assert engine.preempted > 0
    assert log.ended[0] < log.ended[1]
    patient, without = replayed(plan, 8)
    assert without.preempted == 0
    assert log.first[1] < patient.first[1]


def test_answers_are_found_again_only_when_they_are_cached() -> None:
    for answers, expected in ((True, 12), (False, 4)):
        log = Log()
        engine = Engine("e", PROFILE, BlockCache(50, SIZE), log)
        engine.submit(Job((answers, 0), [1], 6, 8, output_blocks=[2, 3] if answers else ()), 0.0)
        while engine.due < math.inf:
            engine.fire()
        engine.submit(Job((answers, 1), [1, 2, 3], 15, 1), 100.0)
        while engine.due < math.inf:
            engine.fire()
        assert log.cached[answers, 1] == expected


def test_what_is_seen_in_the_middle_of_a_run_is_what_a_step_by_step_engine_shows() -> None:
    log = Log()
    engine = Engine("e", PROFILE, BlockCache(50, SIZE), log)
    engine.submit(Job(0, [1], 5, 60), 0.0)
    engine.fire()
    begun, kv = engine.due, engine.kv_tokens
    engine.advance(log.first[0] + 0.5 * (begun - log.first[0]))
    assert kv < engine.kv_tokens < kv + 59
    assert engine.due == begun


def test_a_dead_engine_hands_back_all_it_had() -> None:
    log = Log()
    engine = Engine("e", PROFILE, BlockCache(50, SIZE), log)
    for number in range(6):
        engine.submit(Job(number, [number], 5, 10), 0.0)
    engine.fire()
    assert Counter(job.tag for job in engine.kill()) == Counter(range(6))
    assert engine.due == math.inf
