"""The decode leg: endpoints asked for the answer, one after the other while nothing has gone to the client.

With a hand-off the prompt's KV is read from who prefilled it; without one the endpoint prefills by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from router.answering import Answer, Answering, Attempt
from router.core import Api, Candidate, Decision, InferenceRequest, Leg, TokenizedPrompt
from router.errors import UpstreamFailed
from router.legs.continuing import Continuing
from router.legs.dispatch import Dispatch
from router.legs.failures import Busy, HandOffFailed, Interrupted, no_answer
from router.legs.hand_off import HandOff
from router.legs.retries import Retries
from router.legs.settings import LegSettings
from router.opening import hold
from router.ports import (
    Clock,
    Reliance,
    Reply,
    UpstreamAborted,
    UpstreamBroken,
    UpstreamError,
    UpstreamOrphaned,
    UpstreamRefused,
    UpstreamSilent,
)
from router.trip import Trip
from router.wire.continuable import Terms
from router.wire.kv_transfer import ask_for_usage, decode_leg_body
from router.wire.sse import StreamScanner, scanner_for
from router.wire.transcript import Transcript

Newcomers = Callable[[Collection[str]], Sequence[Candidate]]
"""Endpoint ids that were asked already -> the others that could decode now, best first: those away at the decision."""
_PATIENCE_S = 1.0
"""How long a request that nobody can take waits for an endpoint to come back: a moment's outage costs no request."""
_LOOK_AGAIN_S = 0.1
_USELESS = {
    "empty": "the engine's answer was empty",
    "error": "the engine reported a failure in place of an answer",
}
"""By `router.opening.Opening.failure`."""


class _Remain(NamedTuple):
    """What is left to try when an attempt fails."""

    spent: bool
    """No attempt is."""
    left: bool
    """Some endpoint of the decision is, or the same one without the hand-off."""
    newcomers: Callable[[], Sequence[Candidate]]


class _Asked(NamedTuple):
    """What an endpoint is asked for."""

    prompt: TokenizedPrompt
    body: bytes
    """As it goes to an engine that prefills by itself."""
    hand_off: HandOff | None
    terms: Terms | None
    """By which another engine may go on with the answer; None: none may."""


class DecodeLeg:
    def __init__(
        self,
        dispatch: Dispatch,
        retries: Retries,
        answering: Answering,
        continuing: Continuing,
        clock: Clock,
        settings: LegSettings,
    ) -> None:
        self._dispatch = dispatch
        self._retries = retries
        self._answering = answering
        self._continuing = continuing
        self._clock = clock
        self._settings = settings

    async def run(
        self,
        trip: Trip,
        decision: Decision,
        prompt: TokenizedPrompt,
        hand_off: HandOff | None,
        reply: Reply,
        newcomers: Newcomers,
    ) -> None:
        """Gets an answer and pumps it to the client.

        `hand_off`: None to prefill on the decode endpoint. `newcomers` is asked once nobody of the decision is left.
        Raises `RouterError` when no endpoint gave an answer, or when the answer broke off.
        """
        request = trip.request
        plain = request.body
        injected = self._injects(request)
        if injected:
            plain = ask_for_usage(plain)
        terms = self._continuing.terms(request, plain)
        plain = self._continuing.prepared(plain, terms)
        self._retries.begin()
        tried: set[str] = set()
        left = list(decision.decode)
        if not self._any_usable(left):
            left = await self._others(request, newcomers, tried)
        failure: UpstreamError | None = None
        most = self._settings.max_attempts
        while (candidate := self._dispatch.next(left)) is not None:
            tried.add(candidate.id)
            if hand_off is not None and not self._dispatch.usable(hand_off.holder.id):
                hand_off = None
                self._forget_prefill(trip)
            prefills = hand_off is None
            trip.attempts += 1
            spent = trip.attempts >= most
            remain = _Remain(spent, hand_off is not None or self._any_usable(left), partial(newcomers, tried))
            expected = self._expected_output(request)
            lease = self._dispatch.take(candidate, prompt, output_tokens=expected, prefills=prefills)
            attempt = Attempt(candidate, lease, self._clock(), injected, prefills)
            try:
                self._dispatch.dispatched(request, Leg.DECODE, candidate, prompt, trip.attempts - 1, prefills=prefills)
                failure = await self._attempt(trip, attempt, _Asked(prompt, plain, hand_off, terms), remain, reply)
            finally:
                lease.release()
            if failure is None:
                return
            if isinstance(failure, Interrupted):
                others = partial(self._others, request, newcomers, tried)
                await self._continuing.run(trip, prompt, failure, left, others, tried, reply)
                return
            if hand_off is not None and not isinstance(failure, UpstreamRefused | Busy):
                hand_off = None
                self._forget_prefill(trip)
                if isinstance(failure, HandOffFailed | UpstreamOrphaned):
                    left.insert(0, candidate)
            orphaned = isinstance(failure, UpstreamOrphaned)
            if orphaned:
                # The prefill leg's failure, noticed late: the endpoint keeps its turn, and what follows is no retry.
                most += 1
            elif isinstance(failure, UpstreamSilent) or spent or not self._retries.allowed(request):
                break
            if not self._any_usable(left):
                left = await self._others(request, newcomers, tried)
            if left and not orphaned:
                await self._retries.pause(trip.attempts)
        raise no_answer(failure, trip.attempts)

    def _injects(self, request: InferenceRequest) -> bool:
        """Whether the usage chunk is asked for in the client's place."""
        return (
            self._settings.inject_stream_usage
            and request.stream
            and not request.include_usage
            and request.api in (Api.CHAT, Api.COMPLETIONS)
        )

    def _expected_output(self, request: InferenceRequest) -> int:
        expected = self._settings.expected_output_tokens
        return expected if request.max_tokens is None else min(request.max_tokens, expected)

    async def _others(self, request: InferenceRequest, newcomers: Newcomers, tried: set[str]) -> list[Candidate]:
        """Who was not asked yet: at once, or as soon as somebody is back, within a moment."""
        until = min(self._clock() + _PATIENCE_S, self._retries.until(request))
        found = list(newcomers(tried))
        while not found and self._clock() < until:
            await asyncio.sleep(_LOOK_AGAIN_S)
            found = list(newcomers(tried))
        return found

    def _any_usable(self, left: list[Candidate]) -> bool:
        return any(self._dispatch.usable(candidate.id) for candidate in left)

    @staticmethod
    def _forget_prefill(trip: Trip) -> None:
        """The next decode endpoint prefills by itself: the one that failed may have read the KV, and its holder lets
        go of it once it was read."""
        trip.prefill_endpoint_id = trip.matched_tokens = trip.prefill_s = None

    async def _attempt(
        self,
        trip: Trip,
        attempt: Attempt,
        asked: _Asked,
        remain: _Remain,
        reply: Reply,
    ) -> UpstreamError | None:
        """One endpoint asked. None: the client has its answer; else why not, and nothing has gone to the client."""
        request, candidate = trip.request, attempt.candidate
        body, relies_on = asked.body, None
        if (hand_off := asked.hand_off) is not None:
            body = decode_leg_body(body, hand_off.params)
            waits = partial(self._dispatch.waits_for_kv, request, candidate, asked.prompt)
            relies_on = Reliance(hand_off.holder.url, waits)
        try:
            response = await self._dispatch.open(
                request, candidate, body, self._settings.first_byte_timeout_s, relies_on
            )
        except UpstreamError as error:
            self._dispatch.failed(request, Leg.DECODE, candidate, error)
            return error
        self._dispatch.note_answer(trip, candidate, response.status)
        try:
            status = response.status
            if trip.doubted is candidate.endpoint and attempt.prefills and self._may_go_on(request, remain):
                self._dispatch.passed_over(request, Leg.DECODE, candidate, "status", str(status))
                return Busy(f"the engine answered {status}")
            if status in self._settings.retry_statuses and self._may_go_on(request, remain):
                self._dispatch.passed_over(request, Leg.DECODE, candidate, "status", str(status))
                return Busy(f"the engine answered {status}")
            if status == 500 and not attempt.prefills and self._may_go_on(request, remain):
                lost = HandOffFailed("the engine failed with the KV that was handed over")
                self._dispatch.passed_over(request, Leg.DECODE, candidate, "hand-off", str(lost))
                return lost
            content_type = next((value for name, value in response.headers if name == b"content-type"), b"")
            scanner = scanner_for(request.api, content_type)
            try:
                opening = await hold(request.api, response, content_type, scanner)
            except UpstreamError as error:
                self._dispatch.failed(request, Leg.DECODE, candidate, error)
                return error
            if opening.failure == "abort":
                aborted = UpstreamAborted("the engine aborted the request")
                self._dispatch.failed(request, Leg.DECODE, candidate, aborted)
                return aborted
            if opening.failure == "empty" or (opening.failure is not None and self._may_go_on(request, remain)):
                useless = UpstreamBroken(_USELESS[opening.failure])
                self._dispatch.passed_over(request, Leg.DECODE, candidate, opening.failure, str(useless))
                return useless
            keeps = asked.terms is not None and response.status == 200 and isinstance(scanner, StreamScanner)
            transcript = Transcript(asked.terms) if asked.terms is not None and keeps else None
            answer = Answer(response, content_type, scanner, opening, transcript)
            return await self._answer(trip, attempt, asked.prompt, answer, reply)
        finally:
            await response.close()

    def _may_go_on(self, request: InferenceRequest, remain: _Remain) -> bool:
        """Whether an answer need not be the client's, because another attempt may and can be made."""
        return not remain.spent and self._retries.allowed(request) and (remain.left or bool(remain.newcomers()))

    async def _answer(
        self, trip: Trip, attempt: Attempt, prompt: TokenizedPrompt, answer: Answer, reply: Reply
    ) -> Interrupted | None:
        if answer.response.status < 500:
            self._dispatch.succeeded(attempt.candidate)
        try:
            await self._answering.give(trip, attempt, prompt, answer, reply)
        except UpstreamError as error:
            self._dispatch.failed(trip.request, Leg.DECODE, attempt.candidate, error)
            if answer.transcript is not None and answer.transcript.resumable:
                return Interrupted(attempt, answer.transcript)
            raise UpstreamFailed("The engine's answer broke off before its end.") from None
        return None
