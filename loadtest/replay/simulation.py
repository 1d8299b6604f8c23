"""Simulation: one workload under one policy, on a heap of events and a virtual clock. No sockets, no waiting.

Seconds are those of the workload. Everything random comes from the seed.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from loadtest.replay.cache import BlockCache, Change
from loadtest.replay.clairvoyant import Moment
from loadtest.replay.engine import Engine
from loadtest.replay.fleet import Fleet, Member
from loadtest.replay.job import Job
from loadtest.replay.policies.base import Contestant, World
from loadtest.replay.results import Result, Run, Share
from loadtest.replay.routing import Flight, Routing
from loadtest.replay.workload import Request, Workload
from router.core import Endpoint, EndpointMetrics, EndpointState, Health, IndexState, Leg
from router.errors import RouterError
from router.observability.events import Observer, Observers, Outcome

_EXPIRE_S = 1.0
_LAST_TICKS = 600
"""Entries of the index that run out in a time without requests have all been let go by so many calls."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The world that a replay happens in. Times in seconds."""

    metrics_age_s: float | None = 0.0
    """How old scraped metrics get; 0: always fresh; None: there are none."""
    event_lag_s: float = 0.0
    """From a change in an engine's cache to the index."""
    exact: bool = True
    """False: engines send no KV events, the index knows only what was dispatched."""
    preemption: bool = False
    cache_answers: bool = False
    detect_s: float = 1.0
    """From an engine's death until the router no longer considers it."""
    transfer_s: float = 0.005
    transfer_token_s: float = 5e-6
    """Time that a hand-off takes: once, and for each token that is read."""
    headers: dict[str, str] = {}
    """Routing headers that every request has."""


class Simulation:
    """Implements `loadtest.replay.engine.Listener`."""

    def __init__(
        self,
        workload: Workload,
        contestant: Contestant,
        fleet: Fleet,
        conditions: Conditions,
        *,
        seed: int,
        observers: Sequence[Observer] = (),
        moments: Collection[int] = (),
    ) -> None:
        """`moments`: numbers of requests at whose arrival the engines are copied, for `loadtest.replay.clairvoyant`."""
        self.moments: list[Moment] = []
        self._moments = frozenset(moments)
        self.now = 0.0
        self._workload = workload
        self._contestant = contestant
        self._conditions = conditions
        self._seed = seed
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._pushed = 0
        self._engines: dict[str, Engine] = {}
        self._alive: dict[str, Engine] = {}
        self._states: dict[str, EndpointState] = {}
        self._up: list[EndpointState] = []
        self._results: list[Result] = []
        self._following = _turns(workload.requests)
        self._decide_s: list[float] = []
        self._loading: dict[Job, tuple[Engine, Flight]] = {}
        self._age = conditions.metrics_age_s if contestant.metrics_age_s is None else contestant.metrics_age_s
        size = workload.block_size
        everyone = [*fleet.members, *(member for _, member in fleet.joins)]
        capacity = sum(_blocks(member, size) for member in everyone)
        self._pool = BlockCache(capacity, size) if contestant.pooled else None
        for member in fleet.members:
            self._add_engine(member)
        world = World(profile=fleet.members[0].profile, block_size=size, clock=lambda: self.now, engines=self._engines)
        built = contestant.build(world)
        self._routing = Routing(
            built,
            Observers(*built.observers, *observers),
            block_size=size,
            clock=lambda: self.now,
            rng=random.Random(f"{seed}/policy"),
            exact=conditions.exact,
            shared=None if self._pool is None else self._pool.match,
            header=conditions.headers,
        )
        for member in fleet.members:
            self._show(member)
        for at, member in fleet.joins:
            self._push(at, self._join, member)
        for at, name in fleet.deaths:
            self._push(at, self._die, name)

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Run:
        """Until the last answer. `progress` is told now and then how many requests are done."""
        began = time.process_time()
        self._feed(iter(request for request in self._workload.requests if request.think is None))
        self._push(_EXPIRE_S, self._expire, None)
        if self._age:
            self._scrape(None)
        total, told = len(self._workload.requests), 0
        events = self._events
        while len(self._results) < total:
            if not events:
                raise AssertionError("the replay stands still with requests unanswered")
            self.now, _, act, what = heappop(events)
            act(what)
            if len(self._results) - told >= 100:
                told = len(self._results)
                progress(told)
        progress(total)
        return self._run_record(time.process_time() - began)

    def _run_record(self, cpu_s: float) -> Run:
        return Run(
            policy=self._contestant.name,
            seed=self._seed,
            results=self._results,
            shares=[
                Share(
                    endpoint=name,
                    busy_s=engine.busy_s,
                    prefilled=engine.prefilled,
                    preempted=engine.preempted,
                )
                for name, engine in self._engines.items()
            ],
            ended_s=self.now,
            cpu_s=cpu_s,
            decide_s=statistics.median(self._decide_s) if self._decide_s else 0.0,
        )

    # Events

    def _push(self, at: float, act: Callable[[Any], None], what: Any) -> None:
        self._pushed += 1
        heappush(self._events, (at, self._pushed, act, what))

    def _feed(self, requests: Any) -> None:
        """Open-loop arrivals, one event at a time."""
        request = next(requests, None)
        if request is not None:
            self._push(request.at, self._arrival, (request, requests))

    def _arrival(self, what: Any) -> None:
        request, rest = what
        self._feed(rest)
        self._arrive(request)

    def _arm(self, engine: Engine) -> None:
        if engine.due < math.inf:
            self._push(engine.due, self._wake, (engine, engine.due))

    def _wake(self, what: Any) -> None:
        engine, due = what
        # An engine whose plans changed has another event in the heap.
        if engine.due == due:
            engine.fire()
            self._arm(engine)

    def _expire(self, _: Any) -> None:
        self._routing.index.expire()
        self._push_tick(_EXPIRE_S, self._expire)

    def _push_tick(self, period_s: float, tick: Callable[[Any], None]) -> None:
        """The next of many at equal distances: through a long time without anything else, only the last ones."""
        at = self.now + period_s
        ticks = (self._expire, self._scrape)
        others = (event[0] for event in self._events if event[2] not in ticks)
        # With anything else soon there is nothing to skip: no need to look through all events.
        if not self._events or self._events[0][0] > at or self._events[0][2] in ticks:
            without = (min(others, default=at) - at) // period_s
            at += max(without - _LAST_TICKS, 0) * period_s
        self._push(at, tick, None)

    def _scrape(self, _: Any) -> None:
        self._up = [self._measured(state) for state in self._up]
        self._push_tick(self._age or 1.0, self._scrape)

    # Endpoints

    def _add_engine(self, member: Member) -> None:
        size = self._workload.block_size
        cache = self._pool or BlockCache(_blocks(member, size), size)
        engine = Engine(member.name, member.profile, cache, self, preemption=self._conditions.preemption)
        self._engines[member.name] = self._alive[member.name] = engine

    def _show(self, member: Member) -> None:
        size = self._workload.block_size
        state = EndpointState(
            endpoint=Endpoint(id=member.name, url=f"http://{member.name}", role=member.role),
            health=Health.HEALTHY,
            block_size=size,
            num_blocks=_blocks(member, size),
            index=IndexState.EXACT if self._conditions.exact else IndexState.APPROXIMATE,
            process_start=self.now,
        )
        self._routing.join(state)
        self._up.append(state if self._age is None else self._measured(state))

    def _measured(self, state: EndpointState) -> EndpointState:
        """The state with what a scrape would say now; a dead engine's stays as it is."""
        name = state.endpoint.id
        engine = self._alive.get(name)
        if engine is None:
            return state
        engine.advance(self.now)
        metrics = EndpointMetrics(
            taken_at=self.now,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.cache.used_fraction,
        )
        return EndpointState(
            endpoint=state.endpoint,
            health=state.health,
            block_size=state.block_size,
            num_blocks=state.num_blocks,
            index=state.index,
            metrics=metrics,
            process_start=state.process_start,
        )

    def _join(self, member: Member) -> None:
        self._add_engine(member)
        self._show(member)

    def _die(self, name: str) -> None:
        engine = self._alive.pop(name)
        loading = [job for job, (where, _) in self._loading.items() if where is engine]
        for job in loading:
            del self._loading[job]
        self._push(self.now + self._conditions.detect_s, self._gone, name)
        for job in [*engine.kill(), *loading]:
            flight: Flight = job.tag  # type: ignore[assignment]
            if flight.trip.first_token_at is not None:
                self._over(flight, Outcome.CUT)
            else:
                self._routing.failed(flight, "broken")
                self._try(flight)

    def _gone(self, name: str) -> None:
        self._up = [state for state in self._up if state.endpoint.id != name]
        self._routing.leave(name)

    # Requests

    def _arrive(self, request: Request) -> None:
        if request.number in self._moments:
            self._remember(request.number)
        flight = self._routing.arrive(request, self.now)
        states = self._up
        if self._age == 0.0:
            states = [self._measured(state) for state in states]
        began = time.perf_counter()
        try:
            decision = self._routing.decide(flight, states, self.now)
        except RouterError:
            self._over(flight, Outcome.REFUSED)
            return
        finally:
            self._decide_s.append(time.perf_counter() - began)
        if decision.prefill and request.prompt > self._workload.block_size:
            flight.leg = Leg.PREFILL
        self._try(flight)

    def _remember(self, number: int) -> None:
        engines = {}
        for name, engine in self._alive.items():
            engine.advance(self.now)
            engines[name] = engine.copy(self)
        self.moments.append(Moment(number, engines))

    def _try(self, flight: Flight) -> None:
        """The leg's next attempts, until an engine takes it."""
        routing = self._routing
        while (candidate := routing.next_candidate(flight)) is not None:
            routing.dispatch(flight, candidate, self.now, prefills=flight.prefilled_by is None)
            engine = self._alive.get(candidate.id)
            if engine is not None:
                self._submit(flight, engine)
                return
            routing.failed(flight, "refused")
        if flight.leg is Leg.PREFILL:
            flight.leg, flight.attempt = Leg.DECODE, 0
            self._try(flight)
        else:
            self._over(flight, Outcome.UPSTREAM_ERROR)

    def _submit(self, flight: Flight, engine: Engine) -> None:
        request = flight.request
        if not engine.fits(request.prompt, request.output):
            self._over(flight, Outcome.CLIENT_ERROR)
            return
        prefill = flight.leg is Leg.PREFILL
        job = Job(
            flight,
            request.blocks,
            request.prompt,
            1 if prefill else request.output,
            output_blocks=() if prefill or not self._conditions.cache_answers else request.answer_blocks,
            hold=prefill,
            remote=flight.prefilled_by is not None,
        )
        flight.job = job
        engine.submit(job, self.now)
        self._arm(engine)

    def _over(self, flight: Flight, outcome: Outcome) -> None:
        now, trip, request = self.now, flight.trip, flight.request
        self._let_go(flight)
        self._routing.end(flight, outcome, now)
        first = trip.first_token_at
        self._results.append(
            Result(
                number=request.number,
                at=trip.request.arrived_at,
                prompt=request.prompt,
                output=request.output,
                cached=flight.cached,
                endpoint=trip.endpoint_id,
                prefill_endpoint=trip.prefill_endpoint_id,
                outcome=outcome,
                ttft_s=None if first is None else first - trip.request.arrived_at,
                e2e_s=now - trip.request.arrived_at,
                reason=trip.decision.reason if trip.decision is not None else None,
                predicted_s=flight.predicted_s,
                answered_s=None if first is None else first - flight.dispatched_at,
            )
        )
        following = self._following.get(request.number)
        if following is not None:
            self._push(now + (following.think or 0.0), self._arrive, following)

    def _let_go(self, flight: Flight) -> None:
        """The prefill engine's blocks have been read, or nobody will read them."""
        if flight.prefilled_by is None:
            return
        engine, job = flight.prefilled_by
        flight.prefilled_by = None
        assert isinstance(engine, Engine) and isinstance(job, Job)
        if self._alive.get(engine.name) is engine:
            engine.release_pin(job, self.now)
            self._arm(engine)

    # What engines tell

    def first_token(self, job: Job, now: float) -> None:
        flight: Flight = job.tag  # type: ignore[assignment]
        if flight.leg is Leg.DECODE:
            self._routing.first_token(flight, now)

    def finished(self, job: Job, now: float) -> None:
        flight: Flight = job.tag  # type: ignore[assignment]
        if flight.leg is Leg.DECODE:
            if flight.trip.prefill_endpoint_id is None:
                flight.cached = job.cached
            self._over(flight, Outcome.OK)
        else:
            flight.cached = job.cached
            assert flight.candidate is not None
            flight.prefilled_by = (self._alive[flight.candidate.id], job)
            self._routing.prefilled(flight, now)
            flight.leg, flight.attempt = Leg.DECODE, 0
            # In an event of its own: the engine that tells is in the middle of its step.
            self._push(now, self._try_again, flight)
        if self._pool is not None:
            self._push(now, self._nudge, None)

    def _try_again(self, flight: Flight) -> None:
        self._try(flight)

    def _nudge(self, _: Any) -> None:
        for engine in self._alive.values():
            if engine.due == math.inf and engine.waiting:
                engine.nudge(self.now)
                self._arm(engine)

    def load(self, engine: Engine, job: Job, now: float) -> None:
        flight: Flight = job.tag  # type: ignore[assignment]
        self._loading[job] = (engine, flight)
        conditions = self._conditions
        tokens = job.prompt - job.computed
        self._push(now + conditions.transfer_s + conditions.transfer_token_s * tokens, self._loaded, job)

    def _loaded(self, job: Job) -> None:
        found = self._loading.pop(job, None)
        if found is not None:
            engine, flight = found
            engine.loaded(job, self.now)
            self._arm(engine)
            self._let_go(flight)

    def changed(self, engine: Engine, changes: list[Change], now: float) -> None:
        lag = self._conditions.event_lag_s
        if lag:
            self._push(now + lag, self._late, (engine, changes))
        else:
            self._routing.changed(engine.name, changes)

    def _late(self, what: Any) -> None:
        engine, changes = what
        if engine in self._alive.values():
            self._routing.changed(engine.name, changes)


def _blocks(member: Member, block_size: int) -> int:
    return max(member.kv_tokens // block_size, 1)


def _turns(requests: Sequence[Request]) -> dict[int, Request]:
    """Request number -> the turn that waits for its answer."""
    last: dict[int, int] = {}
    following: dict[int, Request] = {}
    for request in requests:
        if request.session is None:
            continue
        if request.think is not None:
            following[last[request.session]] = request
        last[request.session] = request.number
    return following
