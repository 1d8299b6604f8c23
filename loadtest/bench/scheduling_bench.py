"""Time of one scheduling decision, without tokenization and index lookup.

Run ``python -m loadtest.bench.scheduling_bench``: for the default settings and for llm-d's blend, with 8 and 64
candidates, aggregated and disaggregated, the best and the median of several rounds in microseconds of CPU.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from router.core import (
    Api,
    Candidate,
    Decision,
    Endpoint,
    EndpointMatch,
    EndpointMetrics,
    EndpointState,
    InferenceRequest,
    Inflight,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.cost import assumed
from router.scheduling.scheduler import Scheduler

BLOCKS, BLOCK = 256, 16
ROUNDS, DECISIONS = 9, 400

_LLM_D = {
    "filters": [],
    "scorers": [
        {"plugin": "prefix-cache-scorer", "weight": 3},
        {"plugin": "queue-scorer", "weight": 2},
        {"plugin": "kv-cache-utilization-scorer", "weight": 2},
    ],
}
SETTINGS = {
    "default": SchedulingSettings(),
    "llm-d 3:2:2": SchedulingSettings.model_validate({"profiles": {"decode": _LLM_D, "prefill": _LLM_D}}),
}


def candidates(count: int, roles: Sequence[Role], rng: random.Random) -> list[Candidate]:
    """Endpoints with different loads and matches, as they are under traffic."""
    return [_candidate(f"10.0.0.{i}:8000", roles[i % len(roles)], rng) for i in range(count)]


def _candidate(id_: str, role: Role, rng: random.Random) -> Candidate:
    matched = rng.choice((0, 0, 8, 8, 120, 200))
    metrics = EndpointMetrics(
        taken_at=0.0, running=rng.randint(0, 30), waiting=rng.randint(0, 3), kv_usage=rng.random()
    )
    state = EndpointState(endpoint=Endpoint(id=id_, url="http://engine", role=role), metrics=metrics, block_size=BLOCK)
    inflight = Inflight(rng.randint(0, 30), rng.randint(0, 20_000), rng.randint(0, 90_000))
    # As the engine model has it of a warm engine: work queued, answers under way, a full cache.
    estimate = msgspec.structs.replace(
        assumed(inflight),
        capacity_tokens=450_000,
        held_tokens=200_000,
        missed_per_token=0.3,
        head_s=0.2,
        head_at=0.9,
        prefill_confidence=1.0,
    )
    return Candidate(state, inflight, EndpointMatch(matched, matched), 0.5, estimate)


def decision(scheduler: Scheduler, pool: Sequence[Candidate]) -> Callable[[], Decision]:
    rng = random.Random(1)
    hashes = tuple(rng.getrandbits(64) for _ in range(BLOCKS))
    prompt = TokenizedPrompt(
        token_ids=range(BLOCKS * BLOCK),
        source=TokenSource.LOCAL,
        token_count=BLOCKS * BLOCK,
        block_size=BLOCK,
        block_hashes=hashes,
    )
    request = InferenceRequest(request_id="bench", api=Api.CHAT, path="/v1/chat/completions", body=b"", headers=())

    def decide() -> Decision:
        return scheduler.decide(request, prompt, pool, now=1.0, rng=rng)

    return decide


def measure(call: Callable[[], object]) -> tuple[float, float]:
    """Best and median microseconds of process CPU per call."""
    rounds: list[float] = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(DECISIONS):
            call()
        rounds.append((time.process_time_ns() - started) / DECISIONS / 1000)
    return min(rounds), statistics.median(rounds)


def rows() -> Iterator[tuple[str, str, int, float, float]]:
    registry = builtin_registry()
    pools = {"aggregated": (Role.BOTH,), "prefill/decode": (Role.PREFILL, Role.DECODE)}
    for name, settings in SETTINGS.items():
        scheduler = build_scheduler(settings, registry)
        for kind, roles in pools.items():
            for count in (8, 64):
                pool = candidates(count, roles, random.Random(count))
                yield name, kind, count, *measure(decision(scheduler, pool))


def main() -> None:
    sys.stdout.write(f"{'settings':<14}{'pool':<16}{'candidates':>10}{'best us':>10}{'median us':>11}\n")
    for name, kind, count, best, median in rows():
        sys.stdout.write(f"{name:<14}{kind:<16}{count:>10}{best:>10.1f}{median:>11.1f}\n")


if __name__ == "__main__":
    main()
