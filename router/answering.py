"""Giving one engine's answer to the client: its head, its bytes as they come, and what was learnt of it on the way.

Runs once an endpoint has answered; from the first byte on there is no other endpoint to go to.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from router.core import Api, Candidate, TokenizedPrompt
from router.holders import ResponseHolders
from router.inflight import Lease
from router.observability.events import FirstToken, Observer, Outcome
from router.opening import UNENDED, Opening, broke_off
from router.ports import Clock, Reply, UpstreamAborted, UpstreamBroken, UpstreamError, UpstreamResponse
from router.scheduling.cost import predicted_s
from router.scheduling.explanation import short_form
from router.trip import Trip
from router.wire.continued import Continued, ending
from router.wire.headers import response_headers
from router.wire.sse import Scanner, StreamScanner, before_abort
from router.wire.transcript import Transcript
from router.wire.usage_stripper import UsageStripper

_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_\-]{1,123})"')


class Attempt(NamedTuple):
    """One attempt of the decode leg under way."""

    candidate: Candidate
    lease: Lease
    dispatched_at: float
    injected: bool
    """The usage chunk was asked for by the router and is not the client's."""
    prefills: bool
    """The prompt is computed here, not handed over."""


class Answer(NamedTuple):
    """An engine's answer whose beginning is known to be good."""

    response: UpstreamResponse
    content_type: bytes
    scanner: Scanner
    opening: Opening
    transcript: Transcript | None = None
    """Kept of an answer that another engine may go on with."""


class Answering:
    def __init__(self, observer: Observer, holders: ResponseHolders, clock: Clock, *, explains: bool) -> None:
        """`explains`: put ``x-kvrouter-*`` on answers."""
        self._observer = observer
        self._holders = holders
        self._clock = clock
        self._explains = explains

    async def give(self, trip: Trip, attempt: Attempt, prompt: TokenizedPrompt, answer: Answer, reply: Reply) -> None:
        """Raises `UpstreamError` when the answer breaks off or turns out to be aborted: the client must see the cut."""
        response, scanner = answer.response, answer.scanner
        trip.scanner = scanner
        trip.endpoint_id = attempt.candidate.id
        trip.status = response.status
        if trip.matched_tokens is None:
            trip.matched_tokens = attempt.candidate.matched_tokens(prompt)
        strips = attempt.injected and answer.content_type.startswith(b"text/event-stream")
        stripper = UsageStripper() if strips else None
        transcript = answer.transcript
        # A length would leave no room to tell of a break.
        keeps = not answer.content_type.startswith(b"text/event-stream")
        headers = response_headers(response.headers, keep_length=keeps)
        if self._explains:
            headers += _explaining(trip)
        await reply.start(response.status, headers)
        try:
            await self._pump(trip, attempt, answer, stripper, reply)
            found = scanner.result()
            if found.aborted:
                raise UpstreamAborted("the engine aborted the request")
            if response.status == 200 and broke_off(trip.request.api, scanner, found):
                raise UpstreamBroken(UNENDED)
        except UpstreamError:
            trip.outcome = Outcome.CUT
            raise
        await reply.end(_rest(transcript, stripper))
        trip.output_tokens = found.output_tokens or None
        if found.usage is not None:
            trip.prompt_tokens, trip.cached_tokens = found.usage.prompt_tokens, found.usage.cached_tokens
        trip.outcome = Outcome.ENGINE_ERROR if found.error else outcome_of(trip.request.api, response.status)

    async def _pump(
        self,
        trip: Trip,
        attempt: Attempt,
        answer: Answer,
        stripper: UsageStripper | None,
        reply: Reply,
    ) -> None:
        response, scanner, opening, transcript = answer.response, answer.scanner, answer.opening, answer.transcript
        take, read, send, feed = response.read_nowait, response.read, reply.send, scanner.feed
        head_of_responses = trip.request.api is Api.RESPONSES
        chunk, content = opening.data, opening.content
        if not chunk and (chunk := take() or await read()):
            content = feed(chunk)
        while chunk:
            if content:
                self._first_token(trip, attempt)
            if head_of_responses and (found := _RESPONSE_ID.search(chunk, 0, 4096)) is not None:
                head_of_responses = False
                self._holders.put(found.group(1).decode("ascii"), attempt.candidate.id)
            if scanner.aborted:
                chunk = before_abort(chunk)
            if transcript is not None:
                chunk = transcript.feed(chunk)
            if stripper is not None:
                chunk = stripper.feed(chunk)
            if chunk:
                await send(chunk)
            if scanner.aborted:
                break
            if transcript is not None and transcript.failed:
                raise UpstreamBroken("the engine reported a failure inside its answer")
            if chunk := take() or await read():
                content = feed(chunk)
        trip.last_byte_at = self._clock()

    async def go_on(
        self,
        trip: Trip,
        attempt: Attempt,
        response: UpstreamResponse,
        opening: Opening,
        transcript: Transcript,
        reply: Reply,
    ) -> None:
        """Gives what the next engine says as the rest of the answer that `transcript` has the beginning of.

        Raises `UpstreamError` when it breaks off as well.
        """
        continued, scanner = Continued(transcript), StreamScanner(trip.request.api)
        stripper = UsageStripper() if attempt.injected else None
        begun = False
        chunk = opening.data
        while chunk := chunk or response.read_nowait() or await response.read():
            told, chunk = continued.feed(chunk), b""
            if scanner.feed(told) and not begun:
                begun = True
                self._first_token(trip, attempt)
            if stripper is not None:
                told = stripper.feed(told)
            if told:
                await reply.send(told)
            if continued.failed:
                raise UpstreamBroken("the engine that went on with an answer failed too")
        if not transcript.finished:
            raise UpstreamBroken("the engine that went on with an answer ended before it did")
        await self._ended(trip, scanner, transcript, stripper, b"", reply)

    async def finish(self, trip: Trip, attempt: Attempt, transcript: Transcript, reply: Reply) -> None:
        """Says what was still to be said of an answer that broke off behind its last token."""
        scanner = StreamScanner(trip.request.api)
        told = ending(transcript)
        scanner.feed(told)
        await self._ended(trip, scanner, transcript, UsageStripper() if attempt.injected else None, told, reply)

    async def _ended(
        self,
        trip: Trip,
        scanner: Scanner,
        transcript: Transcript,
        stripper: UsageStripper | None,
        last: bytes,
        reply: Reply,
    ) -> None:
        trip.last_byte_at = self._clock()
        await reply.end(last if stripper is None else stripper.feed(last) + stripper.end())
        usage = scanner.result().usage
        trip.output_tokens = transcript.produced
        trip.prompt_tokens = transcript.prompt_tokens or trip.prompt_tokens
        if usage is not None:
            trip.cached_tokens = usage.cached_tokens
        trip.outcome = Outcome.OK

    def _first_token(self, trip: Trip, attempt: Attempt) -> None:
        now = self._clock()
        if trip.first_token_at is None:
            trip.first_token_at = now
        attempt.lease.first_token()
        self._observer.on_first_token(
            FirstToken(
                request_id=trip.request.request_id,
                endpoint_id=attempt.candidate.id,
                ttft_s=now - trip.request.arrived_at,
                since_dispatch_s=now - attempt.dispatched_at,
                predicted_s=predicted_s(
                    trip.prompt, attempt.candidate, attempt.dispatched_at, prefills=attempt.prefills
                ),
            )
        )


def outcome_of(api: Api, status: int) -> Outcome:
    """How a request ended that an engine answered whole, with this status."""
    if 400 <= status < 500:
        return Outcome.CLIENT_ERROR
    # Nothing to see, or somewhere else to see it, is no answer to what a model was asked.
    empty = api is not Api.OTHER and status in (204, 205)
    return Outcome.ENGINE_ERROR if status >= 300 or empty else Outcome.OK


def _rest(transcript: Transcript | None, stripper: UsageStripper | None) -> bytes:
    """What was held back when the answer had come to its end."""
    rest = b"" if transcript is None else transcript.end()
    return rest if stripper is None else stripper.feed(rest) + stripper.end()


def _explaining(trip: Trip) -> list[tuple[bytes, bytes]]:
    fields = [(b"x-kvrouter-endpoint", (trip.endpoint_id or "").encode("latin-1", "replace"))]
    if trip.prefill_endpoint_id is not None:
        fields.append((b"x-kvrouter-prefill-endpoint", trip.prefill_endpoint_id.encode("latin-1", "replace")))
    fields.append((b"x-kvrouter-matched-tokens", str(trip.matched_tokens or 0).encode()))
    if trip.request.routing_headers.get("x-kvrouter-explain") == "1" and trip.decision and trip.prompt:
        line = short_form(trip.prompt, trip.decision, trip.request.arrived_at + (trip.tokenize_s or 0.0))
        fields.append((b"x-kvrouter-decision", line.encode("latin-1", "replace")))
    return fields
