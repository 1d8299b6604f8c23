"""The gate: where a request waits while no endpoint has room for it. The asyncio edge of `router.flowcontrol`.

A request for which there is room passes without a trace. Otherwise it is offered to the queues; when room is made (a
request ended, gave its first token, a scrape or another router's news came, an endpoint returned) the next in turn is
decided for, among the endpoints that have room, and its place there is held until its legs take their leases.

Woken by events, and by a timer only while something waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from router.core import Caller, Decision, EndpointState, EngineEstimate, InferenceRequest, TokenizedPrompt
from router.errors import Overloaded, RouterError
from router.flowcontrol import refusals
from router.flowcontrol.charges import Charge
from router.flowcontrol.describe import describe
from router.flowcontrol.entries import Entry, Lane
from router.flowcontrol.hearsay import Courtesy, Hearsay, Notes, nothing_told
from router.flowcontrol.objectives import Standing
from router.flowcontrol.passage import Admitted, Waiting, hold
from router.flowcontrol.policy import FlowPolicy
from router.flowcontrol.queues import Kept, Queues, Refusal
from router.flowcontrol.reserve import Reserve
from router.flowcontrol.rivals import told
from router.flowcontrol.room import Gauge, Room
from router.flowcontrol.running import Running
from router.inflight import InflightTracker
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.observability.flow import FlowObserver
from router.ports import Clock, SharedLoad
from router.waiters import Waiter, Waiters

_TICK_S = 0.02
"""While something waits: how soon scrapes, other routers' news and deadlines are seen."""
_MOST_AT_ONCE = 32


class Gate:
    """Implements `router.observability.events.Observer`: what ends or answers makes room."""

    def __init__(
        self,
        *,
        policy: FlowPolicy,
        inflight: InflightTracker,
        shared: SharedLoad,
        observer: FlowObserver,
        clock: Clock,
        estimates: Callable[[str], EngineEstimate | None] = lambda _: None,
        notes: Callable[[], Notes] = nothing_told,
    ) -> None:
        """`notes`: what other routers last told of their queues."""
        self._queues = queues = Queues(policy.limits, policy.turns)
        self._objectives = policy.objectives
        self._gauge = Gauge(policy.detector, inflight, shared, estimates)
        self._observer = observer
        self._clock = clock
        self._reserve = Reserve(policy.holdback)
        self._hearsay = Hearsay(queues, notes)
        self._courtesy = Courtesy()
        self._running = Running()
        self._waiters = Waiters()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def apply(self, policy: FlowPolicy) -> None:
        """Another policy from now on. Who waits goes on waiting, with the deadline and the priority it came with."""
        self._queues.apply(policy.limits, policy.turns)
        self._objectives = policy.objectives
        self._gauge.detector = policy.detector
        self._reserve.holdback = policy.holdback
        self.wake()

    # Passing

    def priority(self, caller: Caller) -> int:
        """The class that its requests are in."""
        return self._objectives.priority(caller)

    def passes(self, request: InferenceRequest, states: Sequence[EndpointState]) -> bool:
        """Whether a request for these endpoints may go at once."""
        now, hearsay = self._clock(), self._hearsay
        spare = self._reserve.kept_from(self.priority(request.caller), now, others_wait=hearsay.others_wait)
        if self._queues.requests:
            return False
        hearsay.listen(now)
        return not hearsay.others_wait and self._gauge.decode_room(states, now, spare)

    def prefill_has_room(self, states: Sequence[EndpointState]) -> bool:
        return self._gauge.prefill_room(states, self._clock())

    def check(self, request: InferenceRequest) -> None:
        """Before anything is computed for it: raises `Overloaded` when it would be refused for certain."""
        if not self._queues.requests:
            return
        now = self._clock()
        standing = self._objectives.standing(request.caller, request.routing_headers, now)
        refusal = self._queues.refuses(standing.priority, request.caller.tenant, len(request.body))
        if refusal is not None:
            raise self._refused(standing, refusal, now)

    async def wait(self, waiting: Waiting) -> Admitted:
        """Raises `Overloaded` when there is no room in the queue or not in time, `NoEndpoint` when nobody is left."""
        now = self._clock()
        request, prompt = waiting.request, waiting.prompt
        standing = self._objectives.standing(request.caller, request.routing_headers, now)
        entry = Entry(
            tenant=request.caller.tenant,
            priority=standing.priority,
            lane=Lane(request.model or "", waiting.splits),
            cost=prompt.token_count + self._running.expected_output(request),
            nbytes=len(request.body),
            enqueued_at=now,
            expires_at=standing.expires_at,
            due=standing.due,
            prefers=waiting.prefers,
        )
        if self._closed:
            raise refusals.shutting_down()
        offered = self._queues.offer(entry, now)
        for victim in offered.evicted:
            self._turn_away(victim, "evicted", now)
        if offered.refusal is not None:
            raise self._refused(standing, offered.refusal, now)
        waiter = Waiter(waiting, standing)
        self._waiters.add(entry, waiter)
        self._pump()
        return await self._result(entry, waiter)

    async def _result(self, entry: Entry, waiter: Waiter) -> Admitted:
        try:
            return await waiter.answer()
        except asyncio.CancelledError:
            now = self._clock()
            self._waiters.forget(entry)
            if self._queues.leave(entry, now):
                self._observer.on_waited(entry.priority, now - entry.enqueued_at, "left")
            elif (given := waiter.admitted_in_vain()) is not None:
                given.hold.release()
                _give_back(given.charge)
            self.wake()
            raise

    def begins(self, admitted: Admitted, served: Callable[[], int]) -> None:
        """Its legs begin; `served` tells from now on how many tokens it was served."""
        if admitted.charge is not None:
            self._running.begins(admitted.charge, served)

    def ends(self, admitted: Admitted, served: int, output_tokens: int | None) -> None:
        """It is over, however it ended."""
        admitted.hold.release()
        self._running.ends(admitted.charge, served, output_tokens)

    # Being woken

    def wake(self) -> None:
        """Room may have been made."""
        if self._queues.requests and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._on_woken)

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None: ...

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None:
        self.wake()

    def on_first_token(self, event: FirstToken) -> None:
        self.wake()

    def on_end(self, event: Ended) -> None:
        self.wake()

    def close(self) -> None:
        """Nobody waits any more: whoever does is told that the router ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        for entry, waiter in self._waiters.take_all():
            self._queues.leave(entry, now)
            waiter.refuse(refusals.shutting_down())

    def _on_woken(self) -> None:
        self._woken = False
        self._pump()

    def _on_tick(self) -> None:
        self._timer = None
        self._pump()

    # Whose turn it is

    def _pump(self) -> None:
        queues, now = self._queues, self._clock()
        self._hearsay.listen(now)
        for entry in queues.expire(now):
            self._turn_away(entry, "expired", now)
        if not queues.requests or self._closed:
            return
        self._running.correct(now)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)
        room = Room(self._waiters.states(len(queues.lanes)), self._gauge, now)
        alone = False
        for _ in range(_MOST_AT_ONCE):
            open_, kept = room.open(0), self._kept(room, now)
            turn = queues.take(open_, now, alone=alone, kept=kept)
            if turn.entry is not None:
                least = open_ if kept is None or turn.entry.priority >= kept.above else kept.rest
                self._dispatch(turn.entry, least[turn.entry.lane], now)
                room.forget()
            elif turn.deferred and self._courtesy.shown(now):
                alone = True
            else:
                if not turn.deferred:
                    self._courtesy.over()
                return
        self.wake()

    def _kept(self, room: Room, now: float) -> Kept | None:
        spare = self._reserve.room(now, others_wait=self._hearsay.others_wait)
        return Kept(self._reserve.top, room.open(spare)) if spare else None

    def _dispatch(self, entry: Entry, ids: Collection[str], now: float) -> None:
        waiter = self._waiters.take(entry)
        charge, prompt = entry.charge, waiter.waiting.prompt
        if waiter.gone:
            # Its client has left in this very turn of the loop.
            _give_back(charge)
            self._observer.on_waited(entry.priority, now - entry.enqueued_at, "left")
            return
        try:
            decision = waiter.waiting.place(ids)
        except RouterError as error:
            _give_back(charge)
            waiter.refuse(error)
            return
        except BaseException as error:
            _give_back(charge)
            waiter.fail(error)
            raise
        if charge is not None:
            charge.correct(self._cost(waiter.waiting.request, prompt, decision))
        self._observer.on_waited(entry.priority, now - entry.enqueued_at, "dispatched")
        waiter.admit(Admitted(decision, hold(self._gauge.held, decision, prompt.token_count), charge))

    def _cost(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> float:
        """Tokens that are left to compute where it was decided to go, and those of the answer."""
        computes = decision.prefill[0] if decision.prefill else decision.decode[0]
        return max(prompt.token_count - computes.matched_tokens(prompt), 0) + self._running.expected_output(request)

    def tell(self) -> bytes:
        """What other routers are to know of this one's queues."""
        return told(self._queues, self._clock())

    # Being turned away

    def _refused(self, standing: Standing, reason: Refusal, now: float) -> Overloaded:
        self._observer.on_refused(standing.priority, reason)
        return refusals.refused(reason, self._queues.retry_after_s(standing.priority, now, standing.max_wait_s))

    def _turn_away(self, entry: Entry, reason: Literal["evicted", "expired"], now: float) -> None:
        waiter = self._waiters.take(entry)
        waited_s = now - entry.enqueued_at
        self._observer.on_waited(entry.priority, waited_s, reason)
        self._observer.on_refused(entry.priority, reason)
        try:
            states = waiter.waiting.states()
        except RouterError as nobody:
            waiter.refuse(nobody)
            return
        busy = entry.lane not in Room({entry.lane: states}, self._gauge, now).open(0)
        after_s = self._queues.retry_after_s(entry.priority, now, waiter.standing.max_wait_s)
        told_why = refusals.evicted if reason == "evicted" else refusals.expired
        waiter.refuse(told_why(waited_s, after_s, busy=busy))

    # What is seen of it

    def waiting(self) -> dict[int, tuple[int, int]]:
        """Priority -> requests and bytes."""
        return {known.priority: (known.requests, known.nbytes) for known in self._queues.classes()}

    def saturation(self, states: Sequence[EndpointState]) -> dict[str, float]:
        now = self._clock()
        return {state.endpoint.id: self._gauge.saturation(state, now) for state in states}

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._queues.requests

    def held(self) -> int:
        """Places held for requests whose legs have not begun."""
        return sum(place.requests for place in self._gauge.held.snapshot().values())

    def describe(self) -> dict[str, Any]:
        """Queues, accounts and the rate at which they are served."""
        return describe(self._queues, self._clock())


def _give_back(charge: Charge | None) -> None:
    if charge is not None:
        charge.correct(0.0)
