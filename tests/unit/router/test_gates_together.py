"""Several gates over the same engines, with what they tell each other 20 ms late, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kvindex.redis_board import Load
from router.core import (
    NO_MATCH,
    Caller,
    Candidate,
    Decision,
    EndpointState,
    InferenceRequest,
    Inflight,
    TokenizedPrompt,
    TokenSource,
)
from router.errors import Overloaded
from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.objectives import Objective, Objectives
from router.flowcontrol.passage import Admitted, Hold, Waiting
from router.flowcontrol.policy import FlowPolicy
from router.flowcontrol.saturation import ConcurrencyDetector, Watch
from router.gate import Gate
from router.inflight import InflightTracker
from router.observability.flow import Unobserved
from router.sharing import Sharing, own_load
from tests.support.journey import endpoint, request
from tests.support.virtual_time import in_virtual_time

SLOTS = 24
ENGINES = ("a", "b")
WEIGHTS = {"bronze": 1.0, "silver": 2.0, "gold": 3.0}
OUTPUT = {"bronze": 24, "silver": 32, "gold": 40}
STEP_S = 0.05
EXCHANGE_S = 0.02
PROMPT = TokenizedPrompt(token_ids=(), source=TokenSource.LOCAL, token_count=0)


class Router:
    """A gate and what a director would do with it."""

    def __init__(self, engines: Mapping[str, asyncio.Semaphore], seed: int) -> None:
        self.inflight = InflightTracker()
        self.others: Load = {}
        self.notes: Mapping[str, bytes] = {}
        self._engines = engines
        self._rng = random.Random(seed)
        self.states = [endpoint(name) for name in engines]
        size = Limits(90, 1_000_000)
        self.gate = Gate(
            policy=FlowPolicy(
                limits=QueueLimits(total=Limits(120, 1_000_000), each_class=size),
                detector=ConcurrencyDetector(Watch(), queue_depth=1, max_requests=SLOTS),
                objectives=Objectives({"high": Objective(priority=10)}, max_wait_s=30.0),
                turns=Turns(weights=WEIGHTS),
                holdback=1,
            ),
            inflight=self.inflight,
            shared=Sharing(lambda: self.others),
            observer=Unobserved(),
            clock=asyncio.get_running_loop().time,
            notes=lambda: self.notes,
        )

    def _decide(self, states: list[EndpointState]) -> Decision:
        def load(state: EndpointState) -> tuple[int, float]:
            name = state.endpoint.id
            return self.inflight.get(name).requests + self.others.get(name, (0, 0, 0))[0], self._rng.random()

        best = min(states, key=load)
        return Decision(decode=(Candidate(best, Inflight(), NO_MATCH, None),))

    async def serve(self, asked: InferenceRequest, output: int) -> float:
        """Seconds until it began on an engine. Raises `Overloaded`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.gate.check(asked)
        if self.gate.passes(asked, self.states):
            admitted = Admitted(self._decide(self.states), Hold())
        else:
            admitted = await self.gate.wait(
                Waiting(
                    request=asked,
                    prompt=PROMPT,
                    splits=False,
                    prefers=(),
                    place=lambda ids: self._decide([state for state in self.states if state.endpoint.id in ids]),
                    states=lambda: self.states,
                )
            )
        name = admitted.decision.decode[0].id
        self.gate.begins(admitted, lambda: 0)
        lease = self.inflight.acquire(name, prefill_tokens=0, tokens=0)
        admitted.hold.release()
        async with self._engines[name]:
            waited = loop.time() - began
            await asyncio.sleep(output * STEP_S)
        lease.release()
        self.gate.ends(admitted, output, output)
        self.gate.wake()
        return waited


async def exchange(routers: list[Router]) -> None:
    """What one tells, the others have with the next round."""
    while True:
        told = [(own_load(router.inflight, lambda _: None), router.gate.tell()) for router in routers]
        await asyncio.sleep(EXCHANGE_S)
        for number, router in enumerate(routers):
            others = [each for position, each in enumerate(told) if position != number]
            load: Counter[str] = Counter()
            for known, _ in others:
                load.update({name: counts[0] for name, counts in known.items()})
            router.others = {name: (count, 0, 0) for name, count in load.items()}
            notes = {str(position): note for position, (_, note) in enumerate(others) if note}
            if notes != router.notes:
                router.notes = notes


class Outcome(msgspec.Struct):
    shares: dict[str, float]
    high_waits: list[float]
    used: float
    """Of what the engines can do."""


async def overload(count: int, *, skewed: bool, seconds: float = 30.0) -> Outcome:
    """Three times what the engines can do. `skewed`: each tenant has a router of its own as far as there are any."""
    rng = random.Random(7)
    engines = {name: asyncio.Semaphore(SLOTS) for name in ENGINES}
    routers = [Router(engines, seed) for seed in range(count)]
    loop = asyncio.get_running_loop()
    capacity = SLOTS * len(ENGINES) / STEP_S
    rate = capacity / (sum(OUTPUT.values()) / 3)
    served: Counter[str] = Counter()
    waits: list[float] = []
    settled = seconds / 3
    total = 0
    base = request({"model": "m", "messages": []})

    async def one(tenant: str, high: bool) -> None:
        nonlocal total
        router = routers[list(WEIGHTS).index(tenant) % count] if skewed and not high else rng.choice(routers)
        asked = msgspec.structs.replace(
            base, caller=Caller(tenant, "high" if high else None), max_tokens=OUTPUT[tenant]
        )
        arrived = loop.time()
        try:
            waited = await router.serve(asked, OUTPUT[tenant])
        except Overloaded:
            assert not high
            return
        if settled <= loop.time() <= seconds:
            total += OUTPUT[tenant]
            if not high:
                served[tenant] += OUTPUT[tenant]
        if high and arrived >= settled:
            waits.append(waited)

    sharing = asyncio.create_task(exchange(routers))
    tasks: list[asyncio.Task[Any]] = []
    while loop.time() < seconds:
        await asyncio.sleep(rng.expovariate(3 * rate))
        tasks.append(asyncio.create_task(one(rng.choice(list(WEIGHTS)), rng.random() < 0.25 / 3)))
    await asyncio.gather(*tasks)
    assert not sharing.done()
    sharing.cancel()
    for router in routers:
        assert not router.inflight.busy
        assert not router.gate.queued
        assert not router.gate.held()
        router.gate.close()
    whole = sum(served.values())
    return Outcome(
        {tenant: served[tenant] / whole for tenant in WEIGHTS}, sorted(waits), total / (seconds - settled) / capacity
    )


@pytest.mark.parametrize(
    ("count", "skewed", "slack"), [(1, False, 0.10), (2, False, 0.15), (2, True, 0.15), (3, True, 0.15)]
)
def test_shares_hold_the_highest_priority_hardly_waits_and_nothing_is_left_idle(
    count: int, skewed: bool, slack: float
) -> None:
    outcome = in_virtual_time(overload(count, skewed=skewed))
    for tenant, weight in WEIGHTS.items():
        assert abs(outcome.shares[tenant] * sum(WEIGHTS.values()) / weight - 1) <= slack
    assert outcome.used >= 0.9
    assert outcome.high_waits[int(0.9 * len(outcome.high_waits))] <= 0.1
