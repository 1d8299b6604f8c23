"""What a law of scaling sees and says. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from loadtest.replay.workload import Request
from router.core import Role
from router.observability.events import Observer

LAWS = (
    "planner",
    "planner-bursts",
    "clairvoyant",
    "static",
    "hpa-concurrency",
    "hpa-kv",
    "aibrix-kpa",
    "llm-d-keda",
    "llm-d-wva",
    "dynamo-load",
)
"""Names on the command line; `loadtest.replay.scaling.catalogue` makes them."""


Knob = Mapping[Role, float]
"""A law's one number, by role."""


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """One serving engine, as a scrape would tell and the router counts."""

    role: Role
    running: int
    waiting: int
    kv_usage: float
    prefill_tokens: int
    """Uncached prompt tokens sent there that have not given a first token."""


class Sample(msgspec.Struct, frozen=True):
    """One answered request of the last minute. Seconds."""

    at: float
    ttft_s: float
    tpot_s: float | None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and the traffic when a law is asked."""

    now: float
    engines: Sequence[Gauge]
    """Those that serve, draining ones not counted."""
    starting: Mapping[Role, int]
    samples: Sequence[Sample]
    arrived: int
    """Requests since the law was asked last."""
    prompt_tokens: int
    """Of these."""
    output_tokens: int
    """Of the answers that ended since then."""
    held: int = 0
    """Requests that wait because nobody can take them."""

    def ready(self, role: Role) -> int:
        return sum(engine.role is role for engine in self.engines)

    def total(self, role: Role) -> int:
        return self.ready(role) + self.starting.get(role, 0)

    def of(self, role: Role) -> list[Gauge]:
        return [engine for engine in self.engines if engine.role is role]


class ScalingLaw(Protocol):
    """Asked every `interval_s` seconds. Its `observer`, if any, hears what the router's observers hear."""

    interval_s: float
    observer: Observer | None

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        """How many engines of each role there should be, those starting included."""
        ...


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator would tell a law of the pool; and, for bounds only, the future."""

    roles: Sequence[Role]
    ttft_s: float
    tpot_s: float
    startup_s: float
    requests: Sequence[Request]
    """The future."""
    batch: frozenset[int] = frozenset()
    """Numbers of latency-tolerant requests."""
