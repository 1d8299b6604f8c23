"""Routing: the router's side of a replay, the director's steps without its waiting. PURE.

The same parts serve and are replayed: the policy is the scheduler, `InflightTracker` counts, `MemoryIndex` is fed with
the engines' events, speculation included, and observers hear what they hear in `router.director` and `router.legs`, in
that order. What the world does in between (engines, time, failures) is `loadtest.replay.simulation`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from kvindex.index import Match, Mode, Tier
from kvindex.memory import MemoryIndex
from loadtest.replay.cache import Change
from loadtest.replay.policies.base import Built
from loadtest.replay.workload import Request
from router.core import (
    NO_MATCH,
    Api,
    Candidate,
    Decision,
    EndpointState,
    InferenceRequest,
    Leg,
    TokenizedPrompt,
    TokenSource,
)
from router.inflight import InflightTracker, Lease
from router.legs import LegSettings
from router.observability.events import Dispatched, FirstToken, LegFailed, Observer, Outcome
from router.scheduling.cost import predicted_s
from router.trip import Trip

_SPECULATIVE_TTL_S = 2.0


class Flight:
    """One request on its way: its trip, and the leg that is on now."""

    __slots__ = (
        "attempt",
        "cached",
        "candidate",
        "decision",
        "dispatched_at",
        "job",
        "lease",
        "leg",
        "predicted_s",
        "prefilled_by",
        "prompt",
        "request",
        "trip",
    )

    def __init__(self, request: Request, trip: Trip, prompt: TokenizedPrompt) -> None:
        self.request = request
        self.trip = trip
        self.prompt = prompt
        self.decision: Decision | None = None
        self.leg = Leg.DECODE
        self.attempt = 0
        self.cached = 0
        """Prompt tokens that the engine that computed the prompt had."""
        self.candidate: Candidate | None = None
        self.dispatched_at = 0.0
        self.predicted_s: float | None = None
        """What the engine model expected from this leg's dispatch to its first token."""
        self.lease: Lease | None = None
        self.job: object | None = None
        self.prefilled_by: tuple[object, object] | None = None
        """(engine, job) whose blocks wait for the decode leg."""


class Routing:
    def __init__(
        self,
        built: Built,
        observer: Observer,
        *,
        block_size: int,
        clock: Callable[[], float],
        rng: random.Random,
        exact: bool = True,
        shared: Callable[[Sequence[int]], int] | None = None,
        settings: LegSettings | None = None,
        header: Mapping[str, str] | None = None,
    ) -> None:
        """`exact`: the index is fed with KV events, else with what was dispatched. `shared`: how many leading blocks
        every endpoint holds, in the place of the index. `header`: routing headers of every request."""
        self.index = MemoryIndex(clock)
        self.inflight = InflightTracker()
        self.observer = observer
        self._policy = built.policy
        self._complete = built.complete
        self._forget = built.forget
        self._block_size = block_size
        self._clock = clock
        self._rng = rng
        self._exact = exact
        self._shared = shared
        self._settings = settings or LegSettings()
        self._headers = dict(header or {})

    # The index

    def join(self, state: EndpointState) -> None:
        name = state.endpoint.id
        self.index.set_mode(name, Mode.EXACT if self._exact else Mode.APPROXIMATE)
        self.index.set_capacity(name, Tier.DEVICE, state.num_blocks or 1)

    def leave(self, endpoint_id: str) -> None:
        self.index.drop(endpoint_id)
        if self._forget is not None:
            self._forget(endpoint_id)

    def changed(self, endpoint_id: str, changes: Sequence[Change]) -> None:
        """The endpoint's KV events arrived."""
        if self._exact and self._shared is None:
            for stored, blocks in changes:
                if stored:
                    self.index.store(endpoint_id, blocks, Tier.DEVICE)
                else:
                    self.index.remove(endpoint_id, blocks, Tier.DEVICE)

    # The journey

    def arrive(self, request: Request, now: float) -> Flight:
        headers = self._headers
        if request.session is not None:
            headers = {**headers, "x-session-id": f"s{request.session}"}
        seen = InferenceRequest(
            request_id=f"r{request.number}",
            api=Api.COMPLETIONS,
            path="/v1/completions",
            stream=True,
            routing_headers=headers,
            arrived_at=now,
        )
        prompt = TokenizedPrompt(
            token_ids=(),
            source=TokenSource.CLIENT,
            token_count=request.prompt,
            block_size=self._block_size,
            block_hashes=request.blocks,
        )
        trip = Trip(seen)
        trip.prompt = prompt
        return Flight(request, trip, prompt)

    def decide(self, flight: Flight, states: Sequence[EndpointState], now: float) -> Decision:
        """Raises `router.errors.RouterError`."""
        trip = flight.trip
        decision = self._policy.decide(
            trip.request, flight.prompt, self._candidates(flight.prompt, states, now), now=now, rng=self._rng
        )
        flight.decision = trip.decision = decision
        self.observer.on_decision(trip.request, flight.prompt, decision)
        return decision

    def _candidates(self, prompt: TokenizedPrompt, states: Sequence[EndpointState], now: float) -> list[Candidate]:
        blocks = prompt.block_hashes
        match: Mapping[str, Match]
        if self._shared is not None:
            held = self._shared(blocks)
            match = dict.fromkeys([state.endpoint.id for state in states], Match(held, held))
        else:
            match = self.index.match(blocks) if blocks else {}
        inflight = self.inflight.get
        candidates = [
            Candidate(
                state,
                inflight(state.endpoint.id),
                match.get(state.endpoint.id, NO_MATCH),
                None if state.metrics is None else now - state.metrics.taken_at,
            )
            for state in states
        ]
        return candidates if self._complete is None else self._complete(candidates)

    def next_candidate(self, flight: Flight) -> Candidate | None:
        """Whom the leg tries now; None when it has tried enough."""
        assert flight.decision is not None
        if flight.leg is Leg.PREFILL:
            choice, most = flight.decision.prefill, self._settings.prefill_attempts
        else:
            choice, most = flight.decision.decode, self._settings.max_attempts
        return choice[flight.attempt] if flight.attempt < min(len(choice), most) else None

    def dispatch(self, flight: Flight, candidate: Candidate, now: float, *, prefills: bool) -> None:
        """A lease is taken, the chain is inserted speculatively, observers are told."""
        prompt, leg = flight.prompt, flight.leg
        matched = candidate.match.blocks * prompt.block_size
        output = 1 if leg is Leg.PREFILL else self._settings.expected_output_tokens
        flight.candidate = candidate
        flight.dispatched_at = now
        flight.predicted_s = predicted_s(prompt, candidate, now, prefills=prefills)
        flight.lease = self.inflight.acquire(
            candidate.id,
            prefill_tokens=max(prompt.token_count - matched, 0) if prefills else 0,
            tokens=prompt.token_count + output,
        )
        if prefills and flight.trip.matched_tokens is None:
            flight.trip.matched_tokens = matched
        if leg is Leg.DECODE:
            flight.trip.attempts = flight.attempt + 1
        if prompt.block_hashes:
            self.index.speculate(candidate.id, prompt.block_hashes, _SPECULATIVE_TTL_S)
        self.observer.on_dispatch(
            Dispatched(
                request_id=flight.trip.request.request_id,
                leg=leg,
                endpoint_id=candidate.id,
                attempt=flight.attempt,
                candidate=candidate,
                prompt=prompt,
                prefills=prefills,
            )
        )

    def failed(self, flight: Flight, kind: str) -> None:
        """The attempt led to nothing; the next candidate's turn comes."""
        assert flight.candidate is not None
        self._release(flight)
        self.observer.on_leg_failed(
            LegFailed(
                request_id=flight.trip.request.request_id, leg=flight.leg, endpoint_id=flight.candidate.id, kind=kind
            )
        )
        flight.trip.matched_tokens = None
        flight.attempt += 1

    def prefilled(self, flight: Flight, now: float) -> None:
        """The prefill leg answered."""
        assert flight.candidate is not None
        self.observer.on_first_token(
            FirstToken(
                request_id=flight.trip.request.request_id,
                endpoint_id=flight.candidate.id,
                ttft_s=now - flight.trip.request.arrived_at,
                since_dispatch_s=now - flight.dispatched_at,
                leg=Leg.PREFILL,
                predicted_s=flight.predicted_s,
            )
        )
        self._release(flight)
        flight.trip.prefill_endpoint_id = flight.candidate.id
        flight.trip.prefill_s = now - flight.dispatched_at

    def first_token(self, flight: Flight, now: float) -> None:
        assert flight.lease is not None
        trip = flight.trip
        trip.first_token_at = now
        flight.lease.first_token()
        self.observer.on_first_token(
            FirstToken(
                request_id=trip.request.request_id,
                endpoint_id=flight.lease.endpoint_id,
                ttft_s=now - trip.request.arrived_at,
                since_dispatch_s=now - flight.dispatched_at,
                predicted_s=flight.predicted_s,
            )
        )

    def end(self, flight: Flight, outcome: Outcome, now: float) -> None:
        trip = flight.trip
        self._release(flight)
        trip.outcome = outcome
        if flight.candidate is not None and outcome in (Outcome.OK, Outcome.CUT):
            trip.endpoint_id = flight.candidate.id
            trip.status = 200
            trip.last_byte_at = now
            trip.cached_tokens = flight.cached
            trip.output_tokens = flight.request.output if outcome is Outcome.OK else None
        self.observer.on_end(trip.ended(now))

    def _release(self, flight: Flight) -> None:
        if flight.lease is not None:
            flight.lease.release()
            flight.lease = None
