"""The gate: where a request waits while no endpoint has room for it. The asyncio edge of `router.flowcontrol`.

A request for which there is room passes without a trace. Otherwise it is offered to the queues; when room is made (a
request ended, gave its first token, a scrape or another router's news came, an endpoint returned) the next in turn is
decided for, among the endpoints that have room, and its place there is held until its legs take their leases.

Woken by events, and by a timer only while something waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from router.core import (
    Decision,
    EndpointState,
    EngineEstimate,
    InferenceRequest,
    TokenizedPrompt,
)
from router.errors import Overloaded, RouterError
from router.flowcontrol import refusals
from router.flowcontrol.charges import Charge
from router.flowcontrol.describe import describe
from router.flowcontrol.entries import Entry, Lane
from router.flowcontrol.objectives import Objectives, Standing
from router.flowcontrol.queues import Kept, Queues, Refusal
from router.flowcontrol.rivals import Rivals, told
from router.flowcontrol.room import Gauge, Room
from router.flowcontrol.saturation import Detector
from router.inflight import InflightTracker, Lease
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.observability.flow import FlowObserver
from router.ports import Clock, SharedLoad

_TICK_S = 0.02
"""While something waits: how soon scrapes, other routers' news and deadlines are seen."""
_POLITE_S = 0.06
"""How long room is left to a request that waits at another router: three rounds of their exchange."""
_MOST_AT_ONCE = 32
_LATELY_S = 60.0
_CORRECT_S = 1.0
_NOTES: Mapping[str, bytes] = {}

Place = Callable[[Collection[str]], Decision]
"""Decides for a request now, among endpoints of these ids if it may. Raises `RouterError`."""


class Hold:
    """What holds a decided request's place until its legs take leases of their own."""

    __slots__ = ("_decode", "_prefill")

    def __init__(self, decode: Lease | None = None, prefill: Lease | None = None) -> None:
        self._decode = decode
        self._prefill = prefill

    def prefill_begins(self) -> None:
        if self._prefill is not None:
            self._prefill.release()

    def release(self) -> None:
        """All of it; may be called again."""
        self.prefill_begins()
        if self._decode is not None:
            self._decode.release()


class Admitted(NamedTuple):
    decision: Decision
    hold: Hold
    charge: Charge | None = None
    """What its tenant was charged; None for one that did not wait."""


class Waiting(NamedTuple):
    """What a request that must wait brings."""

    request: InferenceRequest
    prompt: TokenizedPrompt
    splits: bool
    """It needs room on a prefill endpoint too."""
    prefers: tuple[str, ...]
    place: Place
    states: Callable[[], Sequence[EndpointState]]
    """The endpoints that could serve its model now. Raises `RouterError` when there are none."""


class _Waiter(NamedTuple):
    waiting: Waiting
    standing: Standing
    future: asyncio.Future[Admitted | RouterError]


class Gate:
    """Implements `router.observability.events.Observer`: what ends or answers makes room."""

    def __init__(
        self,
        *,
        queues: Queues,
        detector: Detector,
        objectives: Objectives,
        inflight: InflightTracker,
        shared: SharedLoad,
        observer: FlowObserver,
        clock: Clock,
        holdback: int = 0,
        estimates: Callable[[str], EngineEstimate | None] = lambda _: None,
        notes: Callable[[], Mapping[str, bytes]] = lambda: _NOTES,
    ) -> None:
        """`holdback`: requests of room on each endpoint that are kept for the highest class while it sends any;
        `notes`: what other routers last told of their queues, by router; a new mapping after each change."""
        self._queues = queues
        self._objectives = objectives
        self._gauge = Gauge(detector, inflight, shared, estimates)
        self._observer = observer
        self._clock = clock
        self._holdback = holdback
        self._top, self._top_at = -1_000, 0.0
        """The highest class that sent something lately."""
        self._notes = notes
        self._read: Mapping[str, bytes] = _NOTES
        self._rivals = Rivals()
        self._others_wait = False
        self._waiters: dict[Entry, _Waiter] = {}
        self._running: dict[Charge, Callable[[], int]] = {}
        """What was dispatched from the queues and is not over."""
        self._corrected_at = 0.0
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._deferred_since: float | None = None
        self._mean_output = 256.0
        self._closed = False

    # Passing

    def passes(self, request: InferenceRequest, states: Sequence[EndpointState]) -> bool:
        """Whether a request for these endpoints may go at once."""
        now = self._clock()
        spare = self._kept_from(self._objectives.priority(request.caller), now)
        if self._queues.requests:
            return False
        if self._notes() is not self._read:
            self._hear(now)
        if self._others_wait:
            return False
        return self._gauge.decode_room(states, now, spare)

    def prefill_has_room(self, states: Sequence[EndpointState]) -> bool:
        return self._gauge.prefill_room(states, self._clock())

    def _kept_from(self, priority: int, now: float) -> int:
        """Room on each endpoint that a request of that priority must leave."""
        if priority >= self._top or now - self._top_at > _LATELY_S:
            self._top, self._top_at = priority, now
            return 0
        return self._spare

    @property
    def _spare(self) -> int:
        """With others that fill the same endpoints from news a little old, each leaves one place more."""
        return self._holdback + (1 if self._holdback and self._others_wait else 0)

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
            cost=prompt.token_count + self._expected_output(request),
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
        waiter = _Waiter(waiting, standing, asyncio.get_running_loop().create_future())
        self._waiters[entry] = waiter
        self._pump()
        return await self._result(entry, waiter)

    async def _result(self, entry: Entry, waiter: _Waiter) -> Admitted:
        future = waiter.future
        try:
            result = await future
        except asyncio.CancelledError:
            now = self._clock()
            self._waiters.pop(entry, None)
            if self._queues.leave(entry, now):
                self._observer.on_waited(entry.priority, now - entry.enqueued_at, "left")
            elif future.done() and not future.cancelled() and isinstance(given := future.result(), Admitted):
                given.hold.release()
                self._give_back(given.charge)
            self.wake()
            raise
        if isinstance(result, RouterError):
            raise result
        return result

    def begins(self, admitted: Admitted, served: Callable[[], int]) -> None:
        """Its legs begin; `served` tells from now on how many tokens it was served."""
        if admitted.charge is not None:
            self._running[admitted.charge] = served

    def ends(self, admitted: Admitted, served: int, output_tokens: int | None) -> None:
        """It is over, however it ended."""
        admitted.hold.release()
        if output_tokens:
            self._mean_output += 0.02 * (output_tokens - self._mean_output)
        if admitted.charge is not None:
            self._running.pop(admitted.charge, None)
            admitted.charge.correct(served)

    def _correct(self, now: float) -> None:
        """Answers longer than expected are charged while they run."""
        if now - self._corrected_at >= _CORRECT_S:
            self._corrected_at = now
            for charge, served in self._running.items():
                charge.correct(max(charge.tokens, served()))

    def _give_back(self, charge: Charge | None) -> None:
        if charge is not None:
            charge.correct(0.0)

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
        for entry, waiter in list(self._waiters.items()):
            self._queues.leave(entry, now)
            _answer(waiter, refusals.shutting_down())
        self._waiters.clear()

    def _on_woken(self) -> None:
        self._woken = False
        self._pump()

    def _on_tick(self) -> None:
        self._timer = None
        self._pump()

    # Whose turn it is

    def _pump(self) -> None:
        queues, now = self._queues, self._clock()
        if self._notes() is not self._read:
            self._hear(now)
        for entry in queues.expire(now):
            self._turn_away(entry, "expired", now)
        if not queues.requests or self._closed:
            return
        self._correct(now)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)
        room = Room(self._lane_states(), self._gauge, now)
        alone = False
        for _ in range(_MOST_AT_ONCE):
            open_ = room.open(0)
            kept = Kept(self._top, room.open(self._spare)) if self._holdback else None
            turn = queues.take(open_, now, alone=alone, kept=kept)
            if turn.entry is not None:
                least = open_ if kept is None or turn.entry.priority >= kept.above else kept.rest
                self._dispatch(turn.entry, least[turn.entry.lane], now)
                room.forget()
            elif turn.deferred and self._has_deferred(now):
                alone = True
            else:
                if not turn.deferred:
                    self._deferred_since = None
                return
        self.wake()

    def _has_deferred(self, now: float) -> bool:
        """Room was left for long enough to a request that is more entitled at another router."""
        if self._deferred_since is None:
            self._deferred_since = now
        return now - self._deferred_since >= _POLITE_S

    def _lane_states(self) -> dict[Lane, Sequence[EndpointState]]:
        states: dict[Lane, Sequence[EndpointState]] = {}
        wanted = len(self._queues.lanes)
        for entry, waiter in self._waiters.items():
            if entry.lane not in states:
                try:
                    states[entry.lane] = waiter.waiting.states()
                except RouterError:
                    # Nobody is up for it now: it waits for its deadline or for an endpoint to return.
                    states[entry.lane] = ()
                if len(states) == wanted:
                    break
        return states

    def _dispatch(self, entry: Entry, ids: Collection[str], now: float) -> None:
        waiter = self._waiters.pop(entry)
        charge = entry.charge
        if waiter.future.done():
            # Its client has left in this very turn of the loop.
            self._give_back(charge)
            self._observer.on_waited(entry.priority, now - entry.enqueued_at, "left")
            return
        try:
            decision = waiter.waiting.place(ids)
        except RouterError as error:
            self._give_back(charge)
            _answer(waiter, error)
            return
        except BaseException as error:
            self._give_back(charge)
            waiter.future.set_exception(error)
            raise
        prompt = waiter.waiting.prompt
        computes = decision.prefill[0] if decision.prefill else decision.decode[0]
        if charge is not None:
            expected = self._expected_output(waiter.waiting.request)
            charge.correct(max(prompt.token_count - computes.matched_tokens(prompt), 0) + expected)
        held = self._gauge.held
        hold = Hold(
            held.acquire(decision.decode[0].id, prefill_tokens=0, tokens=prompt.token_count),
            held.acquire(decision.prefill[0].id, prefill_tokens=0, tokens=prompt.token_count)
            if decision.prefill
            else None,
        )
        self._observer.on_waited(entry.priority, now - entry.enqueued_at, "dispatched")
        waiter.future.set_result(Admitted(decision, hold, charge))

    def _expected_output(self, request: InferenceRequest) -> float:
        mean = self._mean_output
        return mean if request.max_tokens is None else min(mean, request.max_tokens * request.n)

    def _hear(self, now: float) -> None:
        self._read = self._notes()
        heard = self._rivals.hear(self._read)
        self._queues.heard(heard.backlog, now)
        for priority, tenant, tokens in heard.served:
            self._queues.charged_elsewhere(priority, tenant, tokens)
        self._others_wait = bool(heard.backlog)

    def tell(self) -> bytes:
        """What other routers are to know of this one's queues."""
        return told(self._queues, self._clock())

    # Being turned away

    def _refused(self, standing: Standing, reason: Refusal, now: float) -> Overloaded:
        self._observer.on_refused(standing.priority, reason)
        return refusals.refused(reason, self._queues.retry_after_s(standing.priority, now, standing.max_wait_s))

    def _turn_away(self, entry: Entry, reason: Literal["evicted", "expired"], now: float) -> None:
        waiter = self._waiters.pop(entry)
        waited_s = now - entry.enqueued_at
        self._observer.on_waited(entry.priority, waited_s, reason)
        self._observer.on_refused(entry.priority, reason)
        try:
            waiter.waiting.states()
        except RouterError as nobody:
            _answer(waiter, nobody)
            return
        after_s = self._queues.retry_after_s(entry.priority, now, waiter.standing.max_wait_s)
        told_why = refusals.evicted if reason == "evicted" else refusals.expired
        _answer(waiter, told_why(waited_s, after_s))

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


def _answer(waiter: _Waiter, error: RouterError) -> None:
    if not waiter.future.done():
        waiter.future.set_result(error)
