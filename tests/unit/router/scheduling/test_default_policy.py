"""What the default settings do to a pool over many requests: no clock, no engine, only decisions and their effects."""

import random
from collections import defaultdict, deque
from typing import Any

import pytest

from router.core import Api, Candidate, EndpointMatch, Inflight, Role
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.scheduler import Scheduler
from tests.support.scheduling import NOW, candidate, prompt, request

ENDPOINTS = [f"10.0.0.{i}:8000" for i in range(4)]
IN_FLIGHT = 40
ROUND_ROBIN = {"profiles": {"decode": {"picker": "round-robin-picker"}}}


class Pool:
    """Endpoints that remember every block they were sent; requests end in the order of their start, roughly."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self._scheduler = scheduler
        self._rng = random.Random(seed)
        self._held: dict[str, set[int]] = defaultdict(set)
        self._running: deque[str] = deque()
        self.uncached = 0
        self.spreads: list[float] = []

    def serve(self, blocks: tuple[int, ...]) -> None:
        counts = {endpoint: self._running.count(endpoint) for endpoint in ENDPOINTS}
        asked = prompt(len(blocks))
        asked = type(asked)(
            token_ids=(),
            source=asked.source,
            token_count=asked.token_count,
            block_size=asked.block_size,
            block_hashes=blocks,
        )
        chosen = self._scheduler.decide(
            request(), asked, [self._candidate(e, counts[e], blocks) for e in ENDPOINTS], now=NOW, rng=self._rng
        ).decode[0]
        self.uncached += len(blocks) - chosen.match.blocks
        self._held[chosen.id].update(blocks)
        self._running.append(chosen.id)
        if len(self._running) > IN_FLIGHT:
            del self._running[self._rng.randrange(IN_FLIGHT // 2)]
            counts[chosen.id] += 1
            self.spreads.append(max(counts.values()) / (sum(counts.values()) / len(counts)))

    def _candidate(self, endpoint: str, running: int, blocks: tuple[int, ...]) -> Candidate:
        held = self._held[endpoint]
        matched = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        known = candidate(endpoint)
        return Candidate(known.state, Inflight(running), EndpointMatch(matched, matched), None)


def replay(settings: dict[str, Any], *, system_prompts: int, seed: int = 1) -> Pool:
    """48 users in conversations of up to 8 turns over so many system prompts of 64 blocks (0: none)."""
    rng = random.Random(seed)
    pool = Pool(build_scheduler(SchedulingSettings.model_validate(settings), builtin_registry()), seed)
    systems = [tuple(rng.getrandbits(64) for _ in range(64)) for _ in range(system_prompts)]
    users: dict[int, tuple[int, ...]] = {}
    for _ in range(1500):
        user = rng.randrange(48)
        history = users.get(user, ())
        if not history or rng.random() < 1 / 8:
            history = rng.choice(systems) if systems else ()
        users[user] = (*history, *(rng.getrandbits(64) for _ in range(rng.randint(4, 16))))
        pool.serve(users[user])
    return pool


@pytest.mark.parametrize("system_prompts", [0, 1, 4, 24])
def test_half_of_round_robins_work_without_piling_up_on_anybody(system_prompts: int) -> None:
    ours = replay({}, system_prompts=system_prompts)
    reference = replay(ROUND_ROBIN, system_prompts=system_prompts)
    assert ours.uncached <= 0.5 * reference.uncached
    assert sum(ours.spreads) / len(ours.spreads) <= 1.5


def test_a_burst_of_short_prompts_is_split_evenly_before_any_of_them_is_answered() -> None:
    pool = Pool(build_scheduler(SchedulingSettings(), builtin_registry()), 1)
    for _ in range(24):
        pool.serve(())
    counts = [pool._running.count(endpoint) for endpoint in ENDPOINTS]
    assert counts == [6, 6, 6, 6]


def test_the_second_turn_goes_to_the_endpoint_that_holds_the_first() -> None:
    scheduler = build_scheduler(SchedulingSettings(), builtin_registry())
    pool = [candidate(e, matched=10 if e == ENDPOINTS[2] else 0, inflight=1) for e in ENDPOINTS]
    decision = scheduler.decide(request(), prompt(12), pool, now=NOW, rng=random.Random(0))
    assert decision.decode[0].id == ENDPOINTS[2]


def test_routers_that_do_not_talk_send_a_cold_prompt_to_the_same_endpoint() -> None:
    settings = SchedulingSettings()
    first = {
        build_scheduler(settings, builtin_registry())
        .decide(request(), prompt(12), [candidate(e) for e in order], now=NOW, rng=random.Random(seed))
        .decode[0]
        .id
        for seed, order in enumerate((ENDPOINTS, ENDPOINTS[::-1]))
    }
    assert len(first) == 1


def test_every_api_and_role_mix_yields_a_decision_with_distinct_endpoints() -> None:
    scheduler = build_scheduler(SchedulingSettings(), builtin_registry())
    roles = [Role.PREFILL, Role.DECODE, Role.BOTH, Role.PREFILL, Role.DECODE]
    pool = [candidate(str(i), role=role, inflight=i) for i, role in enumerate(roles)]
    for api in Api:
        decision = scheduler.decide(request(api=api), prompt(64), pool, now=NOW, rng=random.Random(0))
        assert len({c.id for c in decision.decode}) == len(decision.decode) == 3
        assert decision.decode[0].id not in {c.id for c in decision.prefill}
