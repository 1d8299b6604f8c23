"""The two legs of a request, each over its ordered fallbacks, and the pumping of the answer.

A lease is taken before each attempt and released in that attempt's ``finally``. Retries happen only before the first
response byte. An engine's answer, errors included, goes to the client as it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from router.answering import Answer, Answering, DecodeLeg
from router.core import Api, Candidate, Decision, InferenceRequest, Leg, TokenizedPrompt
from router.errors import NoEndpoint, RouterError, UpstreamFailed, UpstreamTimeout
from router.holders import ResponseHolders
from router.inflight import InflightTracker, Lease
from router.observability.events import Dispatched, FirstToken, LegFailed, Observer, Outcome
from router.opening import hold
from router.ports import (
    Clock,
    EndpointPool,
    PrefixIndex,
    Reply,
    Upstream,
    UpstreamAbandoned,
    UpstreamAborted,
    UpstreamBroken,
    UpstreamError,
    UpstreamRefused,
    UpstreamResponse,
    UpstreamSilent,
)
from router.retry_budget import RetryBudget
from router.scheduling.cost import predicted_s
from router.trip import Trip
from router.wire.headers import response_headers
from router.wire.kv_transfer import ask_for_usage, decode_leg_body, hand_off, prefill_leg_body
from router.wire.sse import scanner_for

Newcomers = Callable[[Collection[str]], Sequence[Candidate]]
"""Endpoint ids that were asked already -> the others that could decode now, best first: those away at the decision."""


class LegSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_attempts: int = 3
    """Decode endpoints tried, the first included."""
    prefill_attempts: int = 2
    """Prefill endpoints tried before the decode endpoint prefills by itself."""
    backoff_s: float = 0.025
    """Mean pause before the second attempt, doubled for each further one, with jitter."""
    backoff_most_s: float = 1.0
    retry_statuses: frozenset[int] = frozenset({502, 503, 504})
    first_byte_timeout_s: float = 300.0
    prefill_timeout_s: float = 60.0
    retry_within_s: float = 60.0
    """No further attempt begins later than this after the request arrived."""
    expected_output_tokens: int = 256
    """Counted for a request that does not say how much it may produce."""
    response_headers: bool = True
    """``x-kvrouter-*`` on answers."""
    inject_stream_usage: bool = False


class Legs:
    def __init__(
        self,
        *,
        upstream: Upstream,
        pool: EndpointPool,
        index: PrefixIndex,
        inflight: InflightTracker,
        observer: Observer,
        holders: ResponseHolders,
        clock: Clock,
        rng: random.Random,
        budget: RetryBudget,
        settings: LegSettings,
    ) -> None:
        self._budget = budget
        self._upstream = upstream
        self._pool = pool
        self._index = index
        self._inflight = inflight
        self._observer = observer
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._answering = Answering(observer, holders, clock, explains=settings.response_headers)

    async def prefill(self, trip: Trip, decision: Decision, prompt: TokenizedPrompt) -> bytes | None:
        """Runs the prefill leg. Returns the hand-off, or None: nobody could prefill, the decode endpoint does it.

        Raises `EngineRefused` when an engine answers with a client error: another engine would say the same.
        """
        request = trip.request
        started = self._clock()
        body = prefill_leg_body(request.body, request.api)
        left = list(decision.prefill)
        for attempt in range(self._settings.prefill_attempts):
            if attempt and left:
                if not self._may_retry(request):
                    break
                await self._before_retry(attempt)
            candidate = self._next(left)
            if candidate is None:
                break
            lease = self._take(candidate, prompt, output_tokens=1, prefills=True)
            try:
                params = await self._prefill_once(request, candidate, prompt, body, attempt)
            finally:
                lease.release()
            if params is not None:
                trip.prefill_endpoint_id = candidate.id
                trip.matched_tokens = candidate.matched_tokens(prompt)
                trip.prefill_s = self._clock() - started
                return params
        return None

    async def _prefill_once(
        self, request: InferenceRequest, candidate: Candidate, prompt: TokenizedPrompt, body: bytes, attempt: int
    ) -> bytes | None:
        dispatched_at = self._clock()
        self._dispatched(request, Leg.PREFILL, candidate, prompt, attempt)
        try:
            response = await self._open(request, candidate, body, self._settings.prefill_timeout_s)
        except UpstreamError as error:
            self._failed(request, Leg.PREFILL, candidate, error)
            return None
        try:
            if 400 <= response.status < 500 and response.status not in (401, 403, 404, 408, 429):
                raise EngineRefused(candidate, response.status, response.headers, await _whole(response))
            answer = await _whole(response)
        except UpstreamError as error:
            self._failed(request, Leg.PREFILL, candidate, error)
            return None
        finally:
            await response.close()
        if response.status != 200:
            if response.status in _ERRORS:
                self._pool.report_error(candidate.endpoint)
            self._observer.on_leg_failed(_leg_failed(request, Leg.PREFILL, candidate, "status"))
            return None
        self._pool.report_success(candidate.endpoint)
        now = self._clock()
        self._observer.on_first_token(
            FirstToken(
                request_id=request.request_id,
                endpoint_id=candidate.id,
                ttft_s=now - request.arrived_at,
                since_dispatch_s=now - dispatched_at,
                leg=Leg.PREFILL,
                predicted_s=predicted_s(prompt, candidate, dispatched_at),
            )
        )
        params = hand_off(answer)
        if params is None:
            self._observer.on_leg_failed(_leg_failed(request, Leg.PREFILL, candidate, "hand-off"))
        return params

    async def decode(
        self,
        trip: Trip,
        decision: Decision,
        prompt: TokenizedPrompt,
        params: bytes | None,
        reply: Reply,
        newcomers: Newcomers,
    ) -> None:
        """Runs the decode leg and pumps its answer to the client.

        `params`: the prefill leg's hand-off, or None to prefill on the decode endpoint. `newcomers` is asked once
        nobody of the decision is left. Raises `RouterError` when no endpoint gave an answer, or when the answer broke
        off.
        """
        request = trip.request
        plain = request.body
        injected = (
            self._settings.inject_stream_usage
            and request.stream
            and not request.include_usage
            and request.api in (Api.CHAT, Api.COMPLETIONS)
        )
        if injected:
            plain = ask_for_usage(plain)
        body = plain if params is None else decode_leg_body(plain, params)
        self._budget.request(self._clock())
        tried: set[str] = set()
        left = list(decision.decode)
        if not any(map(self._usable, left)):
            left = await self._others(request, newcomers, tried)
        failure: UpstreamError | None = None
        while (candidate := self._next(left)) is not None:
            tried.add(candidate.id)
            if params is not None and not self._still_holds(trip):
                self._forget_prefill(trip)
                params, body = None, plain
            trip.attempts += 1
            spent = trip.attempts >= self._settings.max_attempts
            remain = _Remain(spent, params is not None or any(map(self._usable, left)), partial(newcomers, tried))
            lease = self._take(candidate, prompt, output_tokens=self._expected_output(request), prefills=params is None)
            leg = DecodeLeg(candidate, lease, self._clock(), injected, params is None)
            try:
                self._dispatched(request, Leg.DECODE, candidate, prompt, trip.attempts - 1, prefills=params is None)
                failure = await self._attempt(trip, leg, prompt, body, remain, reply)
            finally:
                lease.release()
            if failure is None:
                return
            if params is not None and not isinstance(failure, UpstreamRefused | _Busy):
                self._forget_prefill(trip)
                params, body = None, plain
                if isinstance(failure, _HandOffFailed):
                    left.insert(0, candidate)
            if isinstance(failure, UpstreamSilent) or spent or not self._may_retry(request):
                break
            if not any(map(self._usable, left)):
                left = await self._others(request, newcomers, tried)
            if left:
                await self._before_retry(trip.attempts)
        raise _no_answer(failure)

    async def _others(self, request: InferenceRequest, newcomers: Newcomers, tried: set[str]) -> list[Candidate]:
        """Who was not asked yet: at once, or as soon as somebody is back, within a moment."""
        until = min(self._clock() + _PATIENCE_S, request.arrived_at + self._settings.retry_within_s)
        found = list(newcomers(tried))
        while not found and self._clock() < until:
            await asyncio.sleep(_LOOK_AGAIN_S)
            found = list(newcomers(tried))
        return found

    def _next(self, left: list[Candidate]) -> Candidate | None:
        """Takes the best of `left` that may be asked now: since the decision some may have failed others."""
        candidate = next(filter(self._usable, left), None)
        if candidate is not None:
            left.remove(candidate)
        return candidate

    def _still_holds(self, trip: Trip) -> bool:
        """Whether the endpoint that prefilled may still be asked for the prompt's KV."""
        return trip.prefill_endpoint_id is None or self._pool.usable(trip.prefill_endpoint_id)

    @staticmethod
    def _forget_prefill(trip: Trip) -> None:
        """The next decode endpoint prefills by itself: the one that failed may have read the KV, and its holder lets
        go of it once it was read."""
        trip.prefill_endpoint_id = trip.matched_tokens = trip.prefill_s = None

    def _usable(self, candidate: Candidate) -> bool:
        return self._pool.usable(candidate.id)

    async def _attempt(
        self, trip: Trip, leg: DecodeLeg, prompt: TokenizedPrompt, body: bytes, remain: _Remain, reply: Reply
    ) -> UpstreamError | None:
        """One endpoint asked. None: the client has its answer; else why not, and nothing has gone to the client."""
        request, candidate = trip.request, leg.candidate
        try:
            response = await self._open(request, candidate, body, self._settings.first_byte_timeout_s)
        except UpstreamError as error:
            self._failed(request, Leg.DECODE, candidate, error)
            return error
        if response.status in _ERRORS:
            self._pool.report_error(candidate.endpoint)
        try:
            status = response.status
            if status in self._settings.retry_statuses and self._may_go_on(request, remain):
                self._passed_over(request, candidate, "status")
                return _Busy("the engine's status was one to ask another for")
            if status == 500 and not leg.prefills and self._may_go_on(request, remain):
                self._passed_over(request, candidate, "hand-off")
                return _HandOffFailed("the engine failed with the KV that was handed over")
            content_type = next((value for name, value in response.headers if name == b"content-type"), b"")
            scanner = scanner_for(request.api, content_type)
            try:
                opening = await hold(request.api, response, content_type, scanner)
            except UpstreamError as error:
                self._failed(request, Leg.DECODE, candidate, error)
                return error
            if opening.failure == "abort":
                aborted = UpstreamAborted("the engine aborted the request")
                self._failed(request, Leg.DECODE, candidate, aborted)
                return aborted
            if opening.failure == "empty" or (opening.failure is not None and self._may_go_on(request, remain)):
                return self._passed_over(request, candidate, opening.failure)
            await self._answer(trip, leg, prompt, Answer(response, content_type, scanner, opening), reply)
            return None
        finally:
            await response.close()

    def _passed_over(self, request: InferenceRequest, candidate: Candidate, kind: str) -> UpstreamError:
        """An answer that another endpoint may better."""
        self._observer.on_leg_failed(_leg_failed(request, Leg.DECODE, candidate, kind))
        return UpstreamBroken(f"the engine's answer was not one: {kind}")

    def _may_go_on(self, request: InferenceRequest, remain: _Remain) -> bool:
        """Whether an answer need not be the client's, because another attempt may and can be made."""
        return not remain.spent and self._may_retry(request) and (remain.left or bool(remain.newcomers()))

    def _may_retry(self, request: InferenceRequest) -> bool:
        now = self._clock()
        return now - request.arrived_at < self._settings.retry_within_s and self._budget.allows(now)

    async def _before_retry(self, attempt: int) -> None:
        """Counts the attempt that follows, and waits."""
        self._budget.take(self._clock())
        pause_s = min(self._settings.backoff_s * 2.0 ** (attempt - 1), self._settings.backoff_most_s)
        await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))

    async def _answer(self, trip: Trip, leg: DecodeLeg, prompt: TokenizedPrompt, answer: Answer, reply: Reply) -> None:
        if answer.response.status < 500:
            self._pool.report_success(leg.candidate.endpoint)
        try:
            await self._answering.give(trip, leg, prompt, answer, reply)
        except UpstreamError as error:
            self._failed(trip.request, Leg.DECODE, leg.candidate, error)
            raise UpstreamFailed("The engine's answer broke off before its end.") from None

    async def stored(self, trip: Trip, candidates: list[Candidate], reply: Reply) -> None:
        """Asks each endpoint in turn for a stored response; the last one's 404 is the client's."""
        request = trip.request
        failure: UpstreamError | None = None
        for attempt, candidate in enumerate(candidates):
            trip.attempts = attempt + 1
            lease = self._inflight.acquire(candidate.id, prefill_tokens=0, tokens=0)
            try:
                try:
                    response = await self._open(request, candidate, request.body, self._settings.first_byte_timeout_s)
                except UpstreamError as error:
                    self._failed(request, Leg.DECODE, candidate, error)
                    failure = error
                    continue
                try:
                    if response.status == 404 and attempt + 1 < len(candidates):
                        continue
                    trip.endpoint_id, trip.status = candidate.id, response.status
                    await reply.start(response.status, response_headers(response.headers))
                    while chunk := await response.read():
                        await reply.send(chunk)
                    await reply.end()
                    trip.outcome = Outcome.OK if response.status < 400 else Outcome.CLIENT_ERROR
                    return
                except UpstreamError as error:
                    trip.outcome = Outcome.CUT
                    self._failed(request, Leg.DECODE, candidate, error)
                    raise UpstreamFailed("The engine's answer broke off before its end.") from None
                finally:
                    await response.close()
            finally:
                lease.release()
        raise _no_answer(failure)

    def _take(self, candidate: Candidate, prompt: TokenizedPrompt, *, output_tokens: int, prefills: bool) -> Lease:
        uncached = max(prompt.token_count - candidate.matched_tokens(prompt), 0) if prefills else 0
        return self._inflight.acquire(candidate.id, prefill_tokens=uncached, tokens=prompt.token_count + output_tokens)

    def _expected_output(self, request: InferenceRequest) -> int:
        expected = self._settings.expected_output_tokens
        return expected if request.max_tokens is None else min(request.max_tokens, expected)

    def _dispatched(
        self,
        request: InferenceRequest,
        leg: Leg,
        candidate: Candidate,
        prompt: TokenizedPrompt,
        attempt: int,
        *,
        prefills: bool = True,
    ) -> None:
        if prompt.block_hashes:
            self._index.speculate(candidate.id, prompt.block_hashes)
        self._observer.on_dispatch(
            Dispatched(
                request_id=request.request_id,
                leg=leg,
                endpoint_id=candidate.id,
                attempt=attempt,
                candidate=candidate,
                prompt=prompt,
                prefills=prefills,
                output_tokens=request.max_tokens,
                streams=request.stream,
            )
        )

    async def _open(
        self, request: InferenceRequest, candidate: Candidate, body: bytes, timeout_s: float
    ) -> UpstreamResponse:
        endpoint = candidate.endpoint
        headers = [*request.headers, (b"x-request-id", request.request_id.encode("ascii"))]
        if endpoint.api_key is not None:
            headers = [field for field in headers if field[0] != b"authorization"]
            headers.append((b"authorization", b"Bearer " + endpoint.api_key.encode()))
        if endpoint.rank is not None:
            headers.append((b"x-data-parallel-rank", str(endpoint.rank).encode()))
        return await self._upstream.open(
            endpoint, request.method.encode("ascii"), request.path, headers, body, first_byte_timeout_s=timeout_s
        )

    def _failed(self, request: InferenceRequest, leg: Leg, candidate: Candidate, error: UpstreamError) -> None:
        if not isinstance(error, UpstreamAbandoned):
            self._pool.report_failure(candidate.endpoint)
        self._observer.on_leg_failed(_leg_failed(request, leg, candidate, error.kind))


class _Remain(NamedTuple):
    """What is left to try when an attempt fails."""

    spent: bool
    """No attempt is."""
    left: bool
    """Some endpoint of the decision is, or the same one without the hand-off."""
    newcomers: Callable[[], Sequence[Candidate]]


class _Busy(UpstreamBroken):
    """The engine said that it did not take the request on."""


class _HandOffFailed(UpstreamBroken):
    """The engine failed, perhaps in reading the KV: vLLM says 500 when it cannot (``kv_load_failure_policy: fail``)."""


class EngineRefused(Exception):
    """The prefill engine refused the request itself: its answer is the client's."""

    def __init__(
        self, candidate: Candidate, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> None:
        super().__init__(status)
        self.candidate = candidate
        self.status = status
        self.headers = headers
        self.body = body


_ERRORS = frozenset({500, 502, 504})
"""A row of these is the endpoint's fault. Not 503, which a busy engine says, nor any 4xx, which are the request's."""
_PATIENCE_S = 1.0
"""How long a request that nobody can take waits for an endpoint to come back: a moment's outage costs no request."""
_LOOK_AGAIN_S = 0.1
_MAX_PREFILL_ANSWER = 64 * 1024 * 1024


async def _whole(response: UpstreamResponse) -> bytes:
    pieces = []
    size = 0
    while chunk := await response.read():
        size += len(chunk)
        if size > _MAX_PREFILL_ANSWER:
            raise UpstreamError(f"a prefill answer of more than {_MAX_PREFILL_ANSWER} bytes")
        pieces.append(chunk)
    return b"".join(pieces)


def _leg_failed(request: InferenceRequest, leg: Leg, candidate: Candidate, kind: str) -> LegFailed:
    return LegFailed(request_id=request.request_id, leg=leg, endpoint_id=candidate.id, kind=kind)


def _no_answer(failure: UpstreamError | None) -> RouterError:
    if isinstance(failure, UpstreamSilent):
        return UpstreamTimeout("The engine did not begin to answer within upstream.first_byte_timeout_s.")
    if isinstance(failure, UpstreamRefused):
        return NoEndpoint("No endpoint that serves this request could be reached.", retry_after_s=1)
    if failure is None or isinstance(failure, UpstreamAbandoned):
        return NoEndpoint("No endpoint that serves this request answers any more.", retry_after_s=1)
    return UpstreamFailed("Every endpoint tried closed the connection or answered malformed HTTP.")
