"""Continuing: another engine goes on with a stream that broke off, where what it says is exactly the rest of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from router.answering import Answering, Attempt
from router.core import Api, Candidate, InferenceRequest, Leg, TokenizedPrompt
from router.errors import UpstreamFailed
from router.legs.dispatch import Dispatch
from router.legs.failures import Interrupted
from router.legs.retries import Retries
from router.legs.settings import LegSettings
from router.observability.events import Outcome
from router.opening import hold
from router.ports import Clock, Reply, UpstreamError
from router.trip import Trip
from router.wire.continuable import Terms, terms_of
from router.wire.continued import PATH, asks_for_ids, continued_body
from router.wire.splice import splice
from router.wire.sse import scanner_for
from router.wire.transcript import Transcript

Others = Callable[[], Awaitable[list[Candidate]]]
"""Who else could decode now, best first, waited for a moment."""


class Continuing:
    def __init__(
        self, dispatch: Dispatch, retries: Retries, answering: Answering, clock: Clock, settings: LegSettings
    ) -> None:
        self._dispatch = dispatch
        self._retries = retries
        self._answering = answering
        self._clock = clock
        self._settings = settings

    def terms(self, request: InferenceRequest, body: bytes) -> Terms | None:
        """None: this request's answer is not gone on with."""
        return terms_of(request, body) if self._settings.continue_streams else None

    @staticmethod
    def prepared(body: bytes, terms: Terms | None) -> bytes:
        """The body for the first engine."""
        return body if terms is None else splice(body, set=asks_for_ids(terms))

    async def run(
        self,
        trip: Trip,
        prompt: TokenizedPrompt,
        interrupted: Interrupted,
        left: list[Candidate],
        others: Others,
        tried: set[str],
        reply: Reply,
    ) -> None:
        """Raises `UpstreamFailed` when nobody could go on: the client must see the cut."""
        request, transcript = trip.request, interrupted.transcript
        trip.outcome = None
        most = trip.attempts + self._settings.max_attempts - 1
        while transcript.resumable:
            if transcript.finished:
                await self._answering.finish(trip, interrupted.attempt, transcript, reply)
                return
            if trip.attempts >= most or not self._retries.may_continue(request):
                break
            candidate = self._dispatch.next(left)
            if candidate is None:
                left = await others()
                if (candidate := self._dispatch.next(left)) is None:
                    break
            tried.add(candidate.id)
            body = continued_body(transcript, _max_model_len(candidate, request.model))
            if body is None:
                break
            await self._retries.pause(trip.continued + 1)
            asked = msgspec.structs.replace(request, api=Api.COMPLETIONS, path=PATH, body=body)
            lease = self._dispatch.take(candidate, prompt, output_tokens=transcript.produced, prefills=True)
            attempt = Attempt(candidate, lease, self._clock(), interrupted.attempt.injected, prefills=True)
            try:
                if await self._attempt(trip, asked, attempt, prompt, transcript, reply):
                    return
            finally:
                lease.release()
        trip.outcome = Outcome.CUT
        raise UpstreamFailed("The engine's answer broke off before its end.")

    async def _attempt(
        self,
        trip: Trip,
        asked: InferenceRequest,
        attempt: Attempt,
        prompt: TokenizedPrompt,
        transcript: Transcript,
        reply: Reply,
    ) -> bool:
        """Whether the answer is whole now."""
        candidate = attempt.candidate
        self._dispatch.dispatched(asked, Leg.DECODE, candidate, prompt, trip.attempts)
        trip.attempts += 1
        try:
            response = await self._dispatch.open(asked, candidate, asked.body, self._settings.first_byte_timeout_s)
        except UpstreamError as error:
            self._dispatch.failed(asked, Leg.DECODE, candidate, error)
            return False
        self._dispatch.note_answer(trip, candidate, response.status)
        try:
            content_type = next((value for name, value in response.headers if name == b"content-type"), b"")
            if response.status != 200 or not content_type.startswith(b"text/event-stream"):
                self._dispatch.passed_over(asked, Leg.DECODE, candidate, "status", str(response.status))
                return False
            opening = await hold(asked.api, response, content_type, scanner_for(asked.api, content_type))
            if opening.failure is not None:
                self._dispatch.passed_over(asked, Leg.DECODE, candidate, opening.failure)
                return False
            self._dispatch.succeeded(candidate)
            trip.continued += 1
            await self._answering.go_on(trip, attempt, response, opening, transcript, reply)
            return True
        except UpstreamError as error:
            self._dispatch.failed(asked, Leg.DECODE, candidate, error)
            return False
        finally:
            await response.close()


def _max_model_len(candidate: Candidate, model: str | None) -> int | None:
    """Tokens of prompt and answer together; an adapter's are those of the model below it."""
    models = candidate.state.models
    card = models.get(model or "") or (next(iter(models.values()), None) if model is None else None)
    if card is not None and card.max_model_len is None and card.parent is not None:
        card = models.get(card.parent)
    return None if card is None else card.max_model_len
