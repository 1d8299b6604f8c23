"""The journey of one request, top to bottom. The one place where the order of steps is written.

Steps: who serves the model -> tokens and block hashes -> index -> room -> decision -> prefill leg -> decode leg ->
report.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from router.core import (
    NO_MATCH,
    Api,
    Candidate,
    Decision,
    EndpointState,
    EngineEstimate,
    Health,
    InferenceRequest,
    Inflight,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.errors import ModelNotFound, NoEndpoint, RouterError
from router.flowcontrol.admission import Admission
from router.gate import Admitted, Gate, Hold, Waiting
from router.holders import ResponseHolders
from router.inflight import InflightTracker
from router.legs import EngineRefused, Legs
from router.observability.events import Observer, Outcome
from router.pool.models import serving
from router.ports import CUT, Clock, EndpointPool, PrefixIndex, Reply, SharedLoad, Tokenization, Waker
from router.prompt_limit import NO_LIMIT, PromptLimit
from router.scheduling.explanation import explain as explanation
from router.scheduling.ramp import open_to_more
from router.scheduling.scheduler import Scheduler
from router.trip import Trip
from router.wire.headers import response_headers
from router.wire.kv_transfer import can_disaggregate

_WORTH = 4
"""A prefix of less than one in so many blocks is no reason to wait for the endpoint that holds it."""
_MOST_PREFERRED = 4

_NO_PROMPT = TokenizedPrompt(token_ids=(), source=TokenSource.NONE, token_count=0)


class Director:
    """`scheduler` and `prompt_limit` may be replaced at run time (configuration reload).

    `refresh_models` asks the engines which models they serve, at most once a second: for a name nobody is known for.

    `estimates` tells what is known of an endpoint's engine by its id. `slow_start_s`: see `router.scheduling.ramp`.
    `wake`: where requests wait for the first engine of their pool; None: they are refused.
    """

    def __init__(
        self,
        *,
        pool: EndpointPool,
        refresh_models: Callable[[], Awaitable[None]],
        tokenization: Tokenization,
        index: PrefixIndex,
        scheduler: Scheduler,
        legs: Legs,
        inflight: InflightTracker,
        shared: SharedLoad,
        admission: Admission,
        gate: Gate,
        holders: ResponseHolders,
        observer: Observer,
        clock: Clock,
        rng: random.Random,
        estimates: Callable[[str], EngineEstimate | None] = lambda _: None,
        slow_start_s: float = 0.0,
        prompt_limit: PromptLimit = NO_LIMIT,
        wake: Waker | None = None,
    ) -> None:
        self._pool = pool
        self._refresh_models = refresh_models
        self._tokenization = tokenization
        self._index = index
        self.scheduler = scheduler
        self._legs = legs
        self._inflight = inflight
        self._shared = shared
        self._admission = admission
        self._gate = gate
        self._holders = holders
        self._observer = observer
        self._clock = clock
        self._rng = rng
        self._estimates = estimates
        self.prompt_limit = prompt_limit
        self._slow_start_s = slow_start_s
        self._wake = wake

    async def serve(self, request: InferenceRequest, reply: Reply) -> None:
        """Raises `RouterError` for what the client must be told, before or after the head went out."""
        trip = Trip(request)
        try:
            with self._admission:
                await self._journey(trip, reply)
        except RouterError as error:
            self._note_refusal(trip, error)
            raise
        except asyncio.CancelledError as cancelled:
            trip.outcome = trip.outcome or (Outcome.CUT if CUT in cancelled.args else Outcome.CLIENT_GONE)
            raise
        finally:
            self._observer.on_end(trip.ended(self._clock()))

    async def _journey(self, trip: Trip, reply: Reply) -> None:
        request = trip.request
        if self._wake is not None and not self._able(request.model):
            # Where a planner starts engines for a pool that has none.
            await self._wake.until(lambda: self._able(request.model), request.model)
        if not serving(request.model, self._pool.snapshot()):
            await self._refresh_models()
        states = self._eligible(request)
        self._gate.check(request)

        started = self._clock()
        trip.queue_s = started - request.arrived_at
        if request.api is Api.OTHER:
            prompt = _NO_PROMPT
        else:
            # All that serve the model, healthy or not: what its blocks are keyed by must not change with health.
            prompt = await self._tokenization.tokenize(request, serving(request.model, self._pool.snapshot()))
            states = self._eligible(request)
        trip.prompt = prompt
        self.prompt_limit.check(request, prompt, states)
        tokenized_at = self._clock()
        trip.tokenize_s = tokenized_at - started

        admitted = await self._admit(trip, prompt, states)
        self._gate.begins(admitted, trip.served_tokens)
        try:
            await self._legs_of(trip, admitted, prompt, reply)
        finally:
            self._gate.ends(admitted, trip.served_tokens(), trip.output_tokens)

    def _able(self, model: str | None) -> bool:
        """Some endpoint that may decode serves the model and is not down."""
        return any(
            state.health in (Health.HEALTHY, Health.UNKNOWN) and state.endpoint.role is not Role.PREFILL
            for state in serving(model, self._pool.snapshot())
        )

    async def _admit(self, trip: Trip, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> Admitted:
        """The decision: at once where there is room, else when its turn has come."""
        request, asked_at = trip.request, self._clock()
        gate, decision = self._gate, None
        passes = gate.passes(request, states)
        if passes or any(state.endpoint.role is Role.PREFILL for state in states):
            decision = self._decide(request, prompt, states)
            if passes and (not decision.prefill or gate.prefill_has_room(states)):
                trip.decide_s = self._clock() - asked_at
                return Admitted(decision, Hold())
        splits = decision is not None and bool(decision.prefill)
        admitted = await gate.wait(
            Waiting(
                request=request,
                prompt=prompt,
                splits=splits,
                prefers=self._prefers(prompt, states, Role.DECODE if splits else Role.PREFILL),
                place=lambda ids: self._place(request, prompt, ids),
                states=lambda: self._taking(self._up(request)),
            )
        )
        trip.queue_s = (trip.queue_s or 0.0) + self._clock() - asked_at
        return admitted

    def _place(self, request: InferenceRequest, prompt: TokenizedPrompt, ids: Collection[str]) -> Decision:
        """The decision among endpoints of these ids, or among all where the policy allows none of these."""
        states = self._eligible(request)
        named = _among(states, ids)
        if len(named) < len(states):
            try:
                return self._decide(request, prompt, named)
            except RouterError:
                return self._decide(request, prompt, states)
        return self._decide(request, prompt, states)

    async def _legs_of(self, trip: Trip, admitted: Admitted, prompt: TokenizedPrompt, reply: Reply) -> None:
        """The legs take their own leases before they wait for anything: what held their place is given back first."""
        request, decision, hold = trip.request, admitted.decision, admitted.hold
        trip.decision = decision
        self._observer.on_decision(request, prompt, decision)
        params = None
        if decision.prefill:
            hold.prefill_begins()
            try:
                params = await self._legs.prefill(trip, decision, prompt)
            except EngineRefused as refusal:
                await _pass_on(trip, refusal, reply)
                return

        def newcomers(tried: Collection[str]) -> Sequence[Candidate]:
            try:
                states = [state for state in self._eligible(request) if state.endpoint.id not in tried]
                return self._decide(request, prompt, states).decode
            except RouterError:
                return ()

        hold.release()
        await self._legs.decode(trip, decision, prompt, params, reply, newcomers)

    def _decide(self, request: InferenceRequest, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> Decision:
        candidates = self._candidates(prompt, states)
        decision = self.scheduler.decide(request, prompt, candidates, now=self._clock(), rng=self._rng)
        if decision.prefill and not _splittable(request, prompt):
            return msgspec.structs.replace(decision, prefill=(), reason="pd-unsupported")
        return decision

    def _prefers(self, prompt: TokenizedPrompt, states: Sequence[EndpointState], other: Role) -> tuple[str, ...]:
        """Endpoints, none of role `other`, that hold most of what is held of this prompt, where it is worth waiting."""
        if not prompt.block_hashes:
            return ()
        match = self._index.match(prompt.block_hashes)
        able = [state.endpoint.id for state in states if state.endpoint.role is not other]
        held = {name: match[name].blocks for name in able if name in match}
        most = max(held.values(), default=0)
        if most * _WORTH < len(prompt.block_hashes):
            return ()
        best = tuple(name for name, blocks in held.items() if 2 * blocks >= most)
        return () if len(best) == len(able) else best[:_MOST_PREFERRED]

    def _candidates(self, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> list[Candidate]:
        match = self._index.match(prompt.block_hashes) if prompt.block_hashes else {}
        now = self._clock()
        # Other routers' requests weigh as much as our own: without them N routers would all choose the same endpoint.
        estimates = self._estimates
        inflight = _summed(self._inflight, self._shared.others())
        return [
            Candidate(
                state,
                inflight(state.endpoint.id),
                match.get(state.endpoint.id, NO_MATCH),
                None if state.metrics is None else now - state.metrics.taken_at,
                estimates(state.endpoint.id),
            )
            for state in states
        ]

    def _eligible(self, request: InferenceRequest) -> list[EndpointState]:
        """Endpoints that may be sent this request now: the one that holds the response it goes on from, if it is up."""
        up = self._up(request)
        holder = self._holder_of_previous(request)
        held = [state for state in up if state.endpoint.id == holder] if holder is not None else []
        return held or self._taking(up)

    def _up(self, request: InferenceRequest) -> list[EndpointState]:
        """Endpoints that serve the model and are neither down nor draining."""
        everyone = self._pool.snapshot()
        states = serving(request.model, everyone)
        if not states:
            if not everyone:
                raise NoEndpoint("The pool has no endpoints; name some on the command line or in the configuration.")
            raise ModelNotFound(f"The model `{_short(request.model)}` does not exist.", param="model")
        up = [state for state in states if state.health is Health.HEALTHY or state.health is Health.UNKNOWN]
        if not up:
            raise NoEndpoint("No endpoint that serves this model is healthy.", retry_after_s=1)
        return up

    def _taking(self, up: Sequence[EndpointState]) -> list[EndpointState]:
        return list(open_to_more(up, self._own_requests, self._clock(), self._slow_start_s))

    def _own_requests(self, endpoint_id: str) -> int:
        return self._inflight.get(endpoint_id).requests

    def _holder_of_previous(self, request: InferenceRequest) -> str | None:
        previous = request.fields.get("previous_response_id") if request.api is Api.RESPONSES else None
        return self._holders.get(previous) if isinstance(previous, str) else None

    async def serve_stored(self, request: InferenceRequest, response_id: str, reply: Reply) -> None:
        """``/v1/responses/{id}``: its holder is asked first, then everybody else."""
        trip = Trip(request)
        try:
            with self._admission:
                candidates = self._candidates(_NO_PROMPT, self._eligible(request))
                holder = self._holders.get(response_id)
                candidates.sort(key=lambda candidate: candidate.id != holder)
                await self._legs.stored(trip, candidates, reply)
        except RouterError as error:
            self._note_refusal(trip, error)
            raise
        finally:
            self._observer.on_end(trip.ended(self._clock()))

    async def explain(self, request: InferenceRequest, reply: Reply) -> None:
        """Answers with what would be decided for `request` now, as JSON; nothing is dispatched."""
        states = self._eligible(request)
        prompt = _NO_PROMPT
        if request.api is not Api.OTHER:
            prompt = await self._tokenization.tokenize(request, serving(request.model, self._pool.snapshot()))
            states = self._eligible(request)
        candidates = self._candidates(prompt, states)
        now = self._clock()
        decision = self.scheduler.decide(request, prompt, candidates, now=now, rng=self._rng, explain=True)
        body = msgspec.json.encode(explanation(request, prompt, decision, candidates, now))
        await reply.start(200, [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())])
        await reply.end(body)

    def _note_refusal(self, trip: Trip, error: RouterError) -> None:
        if trip.status is None:
            trip.status = error.status
        if trip.outcome is None:
            if error.status in (429, 503):
                trip.outcome = Outcome.REFUSED
            else:
                trip.outcome = Outcome.CLIENT_ERROR if error.status < 500 else Outcome.UPSTREAM_ERROR


def _among(states: list[EndpointState], ids: Collection[str]) -> list[EndpointState]:
    """Those of `states` that are named, if one of them can decode: a stored response is only where it is."""
    named = [state for state in states if state.endpoint.id in ids]
    return named if any(state.endpoint.role is not Role.PREFILL for state in named) else states


def _summed(own: InflightTracker, others: Mapping[str, Inflight]) -> Callable[[str], Inflight]:
    if not others:
        return own.get

    def total(endpoint_id: str) -> Inflight:
        ours, theirs = own.get(endpoint_id), others.get(endpoint_id)
        if theirs is None:
            return ours
        return Inflight(
            ours.requests + theirs.requests,
            ours.prefill_tokens + theirs.prefill_tokens,
            ours.tokens + theirs.tokens,
        )

    return total


def _splittable(request: InferenceRequest, prompt: TokenizedPrompt) -> bool:
    """Whether this request's KV can be handed over.

    One hand-off carries one prompt's blocks to one reader: a batch of prompts or several completions have none to
    share, and a prompt without a full block has nothing to ship (a decode engine would wait for it for ever).
    """
    if not can_disaggregate(request.api, request.fields, request.n):
        return False
    return not prompt.block_size or prompt.token_count > prompt.block_size


async def _pass_on(trip: Trip, refusal: EngineRefused, reply: Reply) -> None:
    trip.endpoint_id, trip.status, trip.outcome = refusal.candidate.id, refusal.status, Outcome.CLIENT_ERROR
    await reply.start(refusal.status, response_headers(refusal.headers))
    await reply.end(refusal.body)


def _short(model: str | None) -> str:
    return (model or "")[:200]
