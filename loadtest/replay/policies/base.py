"""Contestant, Policy and Reference: what a replay drives. PURE.

A policy is anything with the scheduler's `decide`. The product's own is a `router.scheduling.scheduler.Scheduler`; the
field's formulas are a `Cost` each, ranked by `Reference`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from loadtest.replay.engine import Engine
from loadtest.simulator.timing import EngineProfile
from router.core import Candidate, Decision, InferenceRequest, Leg, Role, TokenizedPrompt
from router.errors import NoEndpoint
from router.observability.events import Observer
from router.scheduling.plugins import Context


class Policy(Protocol):
    def decide(
        self,
        request: InferenceRequest,
        prompt: TokenizedPrompt,
        candidates: Sequence[Candidate],
        *,
        now: float,
        rng: random.Random,
    ) -> Decision:
        """Raises `router.errors.RouterError` to refuse."""
        ...


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may be built from."""

    profile: EngineProfile
    """Of the first engine: what an operator would know of the pool."""
    block_size: int
    clock: Callable[[], float]
    """The replay's time, in seconds."""
    engines: Mapping[str, Engine]
    """The true state of everything, by endpoint id: for bounds only."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    observers: Sequence[Observer] = ()
    """Told what the director's observers are told, in the same order: a model that learns online is one."""
    complete: Callable[[list[Candidate]], list[Candidate]] | None = None
    """Adds to candidates what such a model knows of their endpoints, before each decision."""
    forget: Callable[[str], None] | None = None
    """The endpoint of that id is gone."""


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A name on the command line."""

    name: str
    build: Callable[[World], Built]
    metrics_age_s: float | None = None
    """Age that scraped metrics reach before they are scraped again; None: as the whole replay has it."""
    pooled: bool = False
    """All engines share one cache: only a bound may do that."""
    product: bool = False
    """The product's own scheduler, not a formula of the field."""


class Cost(Protocol):
    def __call__(self, context: Context, candidates: Sequence[Candidate], /) -> Sequence[float]:
        """One cost for each candidate; the least is chosen."""
        ...


class Reference:
    """The candidate of least cost, ties by chance. In a disaggregated pool every prompt is prefilled elsewhere, by the
    same cost, and decoded where the fewest requests are."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def decide(
        self,
        request: InferenceRequest,
        prompt: TokenizedPrompt,
        candidates: Sequence[Candidate],
        *,
        now: float,
        rng: random.Random,
    ) -> Decision:
        decoders = [c for c in candidates if c.state.endpoint.role is not Role.PREFILL]
        prefillers = [c for c in candidates if c.state.endpoint.role is Role.PREFILL]
        if not decoders:
            raise NoEndpoint("No endpoint can decode.")
        if prefillers:
            context = Context(request=request, prompt=prompt, leg=Leg.PREFILL, now=now, rng=rng)
            return Decision(
                decode=_ranked(decoders, [c.inflight.requests for c in decoders], rng),
                prefill=_ranked(prefillers, self._cost(context, prefillers), rng),
                reason="pd",
            )
        context = Context(request=request, prompt=prompt, leg=Leg.DECODE, now=now, rng=rng)
        return Decision(decode=_ranked(decoders, self._cost(context, decoders), rng), reason="aggregated")


def _ranked(candidates: Sequence[Candidate], costs: Sequence[float], rng: random.Random) -> tuple[Candidate, ...]:
    chance = rng.random
    order = sorted((cost, chance(), place) for place, cost in enumerate(costs))
    return tuple([candidates[place] for _, _, place in order])


def uncached(context: Context, candidate: Candidate) -> int:
    """Prompt tokens that the candidate would have to compute."""
    prompt = context.prompt
    return max(prompt.token_count - candidate.match.blocks * prompt.block_size, 1)
