"""This router's planner as a law of scaling, and the clairvoyant bound by the same performance law. PURE."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from loadtest.replay.scaling.base import Given, Seen
from loadtest.replay.scaling.days import BLOCK
from loadtest.replay.workload import Request
from loadtest.simulator.timing import EngineProfile
from router.capacity.demand import Demand, Objective, Qos, Shape
from router.capacity.laws import Profile
from router.capacity.misses import Misses, met
from router.capacity.plan import Fleet, Plan, PoolView, Rules
from router.capacity.planner import Planner
from router.capacity.sizing import size
from router.capacity.traffic import Traffic
from router.capacity.variants import Variant
from router.core import Decision, InferenceRequest, Role, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed, Observer, Outcome

_POOL = "pool"


def variant_of(profile: EngineProfile, startup_s: float, name: str = "engine", cost_per_hour: float = 1.0) -> Variant:
    """What an operator who has measured the engine would write of it."""
    laws = Profile(
        overhead_s=0.0,
        token_s=1 / profile.prefill_tokens_per_s,
        pair_s=profile.attention_s,
        step_base_s=profile.step_s,
        step_seq_s=profile.per_seq_s,
        step_kv_s=profile.per_kv_token_s,
        chunk=profile.chunk,
    )
    return Variant(
        name=name,
        laws=laws,
        kv_tokens=profile.kv_tokens,
        max_seqs=profile.max_seqs,
        startup_s=startup_s,
        cost_per_hour=cost_per_hour,
    )


def rules_of(given: Given, **more: float) -> Rules:
    disaggregated = Role.PREFILL in given.roles
    objective = Objective(ttft_s=given.ttft_s, tpot_s=given.tpot_s, attainment=0.99)
    return Rules(aggregated=not disaggregated, disaggregated=disaggregated, objective=objective, **more)  # type: ignore[arg-type]


def replayed(given: Given, *, burst: float = 1.0, attainment: float = 0.99) -> Rules:
    """A day that is compressed leaves no time for the stabilization that is right for a whole one."""
    rules = rules_of(given, headroom=0.0, burst=burst, margin=0.05, stabilization_s=90.0, budget_s=1080.0)
    objective = msgspec.structs.replace(rules.objective, attainment=min(attainment, 1.0))
    return msgspec.structs.replace(rules, objective=objective)


class Planned:
    """Hears what the router's observers hear, and asks the planner."""

    interval_s = 15.0

    def __init__(self, given: Given, variant: Variant, rules: Rules) -> None:
        self._given, self._variant, self._rules = given, variant, rules
        self._traffic = Traffic()
        self._planner = Planner()
        self._misses = Misses()
        self._ear = _Ear(self._traffic, self._misses, rules.objective, given.batch)
        self.observer: Observer | None = self._ear
        self.plans: list[Plan] = []

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        self._ear.now = seen.now
        ahead = self._variant.startup_s + self.interval_s
        demand = self._traffic.demand(_POOL, seen.now, ahead)
        backlog = sum(engine.prefill_tokens for engine in seen.engines)
        demand = msgspec.structs.replace(demand, backlog_tokens=float(backlog), held=seen.held)
        fleet = Fleet(
            ready={(role, self._variant.name): seen.ready(role) for role in self._given.roles if seen.ready(role)},
            starting={(role, self._variant.name): n for role, n in seen.starting.items() if n},
        )
        last = self._traffic.last_arrival(_POOL)
        view = PoolView(
            name=_POOL,
            variants=[self._variant],
            rules=self._rules,
            demand=demand,
            fleet=fleet,
            idle_s=None if last is None else seen.now - last,
            record=self._misses.record(_POOL, seen.now, self._rules.budget_s),
        )
        plan = self._planner.plan(seen.now, [view])[0]
        self.plans.append(plan)
        return {role: plan.of_role(role) for role in self._given.roles}


class _Ear:
    """Implements `router.observability.events.Observer`: what comes goes into the traffic."""

    def __init__(self, traffic: Traffic, misses: Misses, objective: Objective, batch: frozenset[int]) -> None:
        self._traffic, self._misses, self._objective, self._batch = traffic, misses, objective, batch
        self.now = 0.0

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        self._traffic.arrived(_POOL, self._qos(request), prompt.token_count, request.arrived_at)

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_end(self, event: Ended) -> None:
        within = met(event, self._objective)
        if within is not None and self._qos(event.request) is Qos.INTERACTIVE:
            self._misses.answered(_POOL, within, event.request.arrived_at + event.e2e_s)
        if event.outcome is Outcome.OK and event.prompt_tokens is not None:
            at = event.request.arrived_at + event.e2e_s
            cached, output = event.cached_tokens or 0, event.output_tokens or 1
            self._traffic.answered(_POOL, self._qos(event.request), event.prompt_tokens, cached, output, at)

    def _qos(self, request: InferenceRequest) -> Qos:
        return Qos.BATCH if int(request.request_id[1:]) in self._batch else Qos.INTERACTIVE


class Clairvoyant:
    """Knows every request beforehand: at each moment as many engines as the performance law wants for what truly comes
    while an engine asked for now would start, each asked for just in time. The knob scales the rates: the least that
    still attains the objective makes the bound."""

    interval_s = 15.0
    observer: Observer | None = None
    _WINDOW_S = 60.0

    def __init__(self, given: Given, variant: Variant, scale: float) -> None:
        self._given, self._variant, self._scale = given, variant, scale
        self._requests = [r for r in given.requests if r.number not in given.batch]
        self._times = [request.at for request in self._requests]
        self._cached = _cached(self._requests)
        self._needs: dict[tuple[int, Role], int] = {}

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        steps = range(math.ceil((self._variant.startup_s + self.interval_s) / self.interval_s) + 1)
        return {
            role: max(self._need(seen.now + step * self.interval_s, role) for step in steps)
            for role in self._given.roles
        }

    def first(self) -> Mapping[Role, int]:
        """What it would begin with."""
        return {role: max(self._need(at, role) for at in (0.0, 30.0, 60.0, 90.0)) for role in self._given.roles}

    def _need(self, at: float, role: Role) -> int:
        key = (round(at / self.interval_s), role)
        if key not in self._needs:
            self._needs[key] = self._count(at, role)
        return self._needs[key]

    def _count(self, at: float, role: Role) -> int:
        low = bisect_left(self._times, at - self._WINDOW_S / 2)
        high = bisect_left(self._times, at + self._WINDOW_S / 2)
        if high == low:
            return 1
        span = self._WINDOW_S if at > self._WINDOW_S / 2 else self._WINDOW_S / 2 + at
        demand = Demand(shapes=_shapes(self._requests[low:high], self._cached, span))
        objective = Objective(ttft_s=self._given.ttft_s, tpot_s=self._given.tpot_s, attainment=0.99)
        sizing = size(role, [self._variant], demand, objective, [0], demand.rate * self._scale)
        return sizing.alone[0] or 1


def _cached(requests: Sequence[Request]) -> dict[int, int]:
    """Request number -> prompt tokens that are in every request of its kind."""
    uses = Counter(block for request in requests for block in request.blocks[:8])
    return {request.number: BLOCK * sum(uses[block] > 50 for block in request.blocks[:8]) for request in requests}


def _shapes(requests: Sequence[Request], cached: Mapping[int, int], span: float) -> list[Shape]:
    groups: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.prompt.bit_length(), request.output.bit_length() // 2), []).append(request)
    return [
        Shape(
            rate=len(group) / span,
            new_tokens=sum(r.prompt - cached[r.number] for r in group) / len(group),
            cached_tokens=sum(cached[r.number] for r in group) / len(group),
            output_tokens=sum(r.output for r in group) / len(group),
        )
        for group in groups.values()
    ]
