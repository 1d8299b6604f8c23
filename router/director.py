"""The journey of one request, top to bottom. The one place where the order of steps is written.

Steps: who serves the model -> tokens and block hashes -> index -> room -> decision -> prefill leg -> decode leg ->
report.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from router.core import (
    Api,
    Candidate,
    Decision,
    EndpointState,
    InferenceRequest,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.eligible import Eligible
from router.errors import DeadlineExceeded, RouterError
from router.flowcontrol.admission import Admission
from router.flowcontrol.passage import Admitted, Hold, Waiting
from router.gate import Gate
from router.holders import ResponseHolders
from router.legs import EngineRefused, Legs
from router.observability.events import Observer, Outcome, of_refusal
from router.ports import CUT, Clock, Reply, Tokenization, Waker
from router.prompt_limit import NO_LIMIT, PromptLimit
from router.scheduling.explanation import explain as explanation
from router.scheduling.scheduler import Scheduler
from router.trip import Trip
from router.wire.headers import response_headers
from router.wire.kv_transfer import can_disaggregate

_NO_PROMPT = TokenizedPrompt(token_ids=(), source=TokenSource.NONE, token_count=0)


class Director:
    """`scheduler` and `prompt_limit` may be replaced at run time (configuration reload).

    `refresh_models` asks the engines which models they serve, at most once a second: for a name nobody is known for.

    `wake`: where requests wait for the first engine of their pool; None: they are refused.
    """

    def __init__(
        self,
        *,
        eligible: Eligible,
        refresh_models: Callable[[], Awaitable[None]],
        tokenization: Tokenization,
        scheduler: Scheduler,
        legs: Legs,
        admission: Admission,
        gate: Gate,
        holders: ResponseHolders,
        observer: Observer,
        clock: Clock,
        rng: random.Random,
        prompt_limit: PromptLimit = NO_LIMIT,
        wake: Waker | None = None,
    ) -> None:
        self._eligible = eligible
        self._refresh_models = refresh_models
        self._tokenization = tokenization
        self.scheduler = scheduler
        self._legs = legs
        self._admission = admission
        self._gate = gate
        self._holders = holders
        self._observer = observer
        self._clock = clock
        self._rng = rng
        self.prompt_limit = prompt_limit
        self._wake = wake

    async def serve(self, request: InferenceRequest, reply: Reply) -> None:
        """Raises `RouterError` for what the client must be told, before or after the head went out."""
        trip = Trip(request)
        with self._reported(trip), self._admission:
            await self._in_time(trip, self._journey(trip, reply))

    @contextlib.contextmanager
    def _reported(self, trip: Trip) -> Iterator[None]:
        """Tells how it ended, once, however it does."""
        try:
            yield
        except RouterError as error:
            trip.status = trip.status or error.status
            trip.outcome = trip.outcome or of_refusal(error.status)
            raise
        except asyncio.CancelledError as cancelled:
            trip.outcome = trip.outcome or (Outcome.CUT if CUT in cancelled.args else Outcome.CLIENT_GONE)
            raise
        finally:
            if trip.outcome is None:
                # What is neither an end nor a refusal is a mistake of this router's own, which the front answers.
                trip.status, trip.outcome = trip.status or RouterError.status, Outcome.ROUTER_ERROR
            self._observer.on_end(trip.ended(self._clock()))

    async def _in_time(self, trip: Trip, journey: Coroutine[Any, Any, None]) -> None:
        """Past the request's deadline its journey ends where it stands, as if the client had left, but for being told.

        Raises `DeadlineExceeded`.
        """
        deadline_at = trip.request.deadline_at
        if deadline_at is None:
            await journey
            return
        limit = asyncio.timeout(max(deadline_at - self._clock(), 0.0))
        try:
            async with limit:
                await journey
        except TimeoutError:
            if not limit.expired():
                raise
            if trip.status is not None:
                trip.outcome = Outcome.CUT
            raise DeadlineExceeded("The answer was not whole within the time that the request gave for it.") from None

    async def _journey(self, trip: Trip, reply: Reply) -> None:
        request = trip.request
        if self._wake is not None and not self._eligible.able(request.model):
            # Where a planner starts engines for a pool that has none.
            await self._wake.until(lambda: self._eligible.able(request.model), request.model)
        if not self._eligible.serving(request.model):
            await self._refresh_models()
        states = self._eligible.now(request)
        self._gate.check(request)

        started = self._clock()
        trip.queue_s = started - request.arrived_at
        if request.api is Api.OTHER:
            prompt = _NO_PROMPT
        else:
            # All that serve the model, healthy or not: what its blocks are keyed by must not change with health.
            prompt = await self._tokenization.tokenize(request, self._eligible.serving(request.model))
            states = self._eligible.now(request)
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
                prefers=self._eligible.preferred(prompt, states, Role.DECODE if splits else Role.PREFILL),
                place=lambda ids: self._place(request, prompt, ids),
                states=lambda: self._eligible.taking(self._eligible.up(request)),
            )
        )
        trip.queue_s = (trip.queue_s or 0.0) + self._clock() - asked_at
        return admitted

    def _place(self, request: InferenceRequest, prompt: TokenizedPrompt, ids: Collection[str]) -> Decision:
        """The decision among endpoints of these ids, or among all where the policy allows none of these."""
        states = self._eligible.now(request)
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
        hand_off = None
        if decision.prefill:
            hold.prefill_begins()
            try:
                hand_off = await self._legs.prefill.run(trip, decision, prompt)
            except EngineRefused as refusal:
                await _pass_on(trip, refusal, reply)
                return

        def newcomers(tried: Collection[str]) -> Sequence[Candidate]:
            try:
                return self._decide(request, prompt, self._eligible.others(request, tried)).decode
            except RouterError:
                return ()

        hold.release()
        await self._legs.decode.run(trip, decision, prompt, hand_off, reply, newcomers)

    def _decide(self, request: InferenceRequest, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> Decision:
        candidates = self._eligible.candidates(prompt, states)
        decision = self.scheduler.decide(request, prompt, candidates, now=self._clock(), rng=self._rng)
        if decision.prefill and not _splittable(request, prompt):
            return msgspec.structs.replace(decision, prefill=(), reason="pd-unsupported")
        return decision

    async def serve_stored(self, request: InferenceRequest, response_id: str, reply: Reply) -> None:
        """``/v1/responses/{id}``: its holder is asked first, then everybody else."""
        trip = Trip(request)
        with self._reported(trip), self._admission:
            candidates = self._eligible.candidates(_NO_PROMPT, self._eligible.now(request))
            holder = self._holders.get(response_id)
            candidates.sort(key=lambda candidate: candidate.id != holder)
            await self._in_time(trip, self._legs.stored.run(trip, candidates, holder, reply))

    async def explain(self, request: InferenceRequest, reply: Reply) -> None:
        """Answers with what would be decided for `request` now, as JSON; nothing is dispatched."""
        states = self._eligible.now(request)
        prompt = _NO_PROMPT
        if request.api is not Api.OTHER:
            prompt = await self._tokenization.tokenize(request, self._eligible.serving(request.model))
            states = self._eligible.now(request)
        candidates = self._eligible.candidates(prompt, states)
        now = self._clock()
        decision = self.scheduler.decide(request, prompt, candidates, now=now, rng=self._rng, explain=True)
        body = msgspec.json.encode(explanation(request, prompt, decision, candidates, now))
        await reply.start(200, [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())])
        await reply.end(body)


def _among(states: list[EndpointState], ids: Collection[str]) -> list[EndpointState]:
    """Those of `states` that are named, if one of them can decode: a stored response is only where it is."""
    named = [state for state in states if state.endpoint.id in ids]
    return named if any(state.endpoint.role is not Role.PREFILL for state in named) else states


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
