"""The prefill leg: the prompt computed on an engine that hands its KV over."""

from __future__ import annotations

import asyncio

from router.core import Candidate, Decision, Leg, TokenizedPrompt
from router.legs.dispatch import Dispatch
from router.legs.hand_off import HandOff
from router.legs.retries import Retries
from router.legs.settings import LegSettings
from router.observability.events import FirstToken, Observer
from router.ports import Clock, UpstreamError, UpstreamResponse, UpstreamSilent
from router.scheduling.cost import predicted_s
from router.trip import Trip
from router.wire.kv_transfer import hand_off, prefill_leg_body

_MOST_BYTES = 64 * 1024 * 1024
_OTHERS_MAY_NOT = frozenset({401, 403, 404, 408, 429})
"""Client errors that are this engine's own: another one may answer otherwise."""


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


class PrefillLeg:
    def __init__(
        self, dispatch: Dispatch, retries: Retries, observer: Observer, clock: Clock, settings: LegSettings
    ) -> None:
        self._dispatch = dispatch
        self._retries = retries
        self._observer = observer
        self._clock = clock
        self._settings = settings

    async def run(self, trip: Trip, decision: Decision, prompt: TokenizedPrompt) -> HandOff | None:
        """Returns the hand-off, or None: nobody could prefill, the decode endpoint does it.

        Raises `EngineRefused` when an engine answers with a client error: another engine would say the same.
        """
        request = trip.request
        started = self._clock()
        body = prefill_leg_body(request.body, request.api)
        left = list(decision.prefill)
        for attempt in range(self._settings.prefill_attempts):
            if attempt and left:
                if not self._retries.allowed(request):
                    break
                await self._retries.pause(attempt)
            candidate = self._dispatch.next(left)
            if candidate is None:
                break
            lease = self._dispatch.take(candidate, prompt, output_tokens=1, prefills=True)
            try:
                params = await self._attempt(trip, candidate, prompt, body, attempt)
            finally:
                lease.release()
            if params is not None:
                trip.prefill_endpoint_id = candidate.id
                trip.matched_tokens = candidate.matched_tokens(prompt)
                trip.prefill_s = self._clock() - started
                return HandOff(params, candidate.endpoint)
        return None

    async def _attempt(
        self, trip: Trip, candidate: Candidate, prompt: TokenizedPrompt, body: bytes, attempt: int
    ) -> bytes | None:
        request, dispatch, dispatched_at = trip.request, self._dispatch, self._clock()
        dispatch.dispatched(request, Leg.PREFILL, candidate, prompt, attempt)
        try:
            response = await dispatch.open(request, candidate, body, self._settings.prefill_timeout_s)
        except UpstreamError as error:
            dispatch.failed(request, Leg.PREFILL, candidate, error)
            return None
        try:
            answer = await self._in_time(response, dispatched_at)
        except UpstreamError as error:
            dispatch.failed(request, Leg.PREFILL, candidate, error)
            return None
        finally:
            await response.close()
        if 400 <= response.status < 500 and response.status not in _OTHERS_MAY_NOT:
            raise EngineRefused(candidate, response.status, response.headers, answer)
        dispatch.note_answer(trip, candidate, response.status)
        if response.status != 200:
            dispatch.passed_over(request, Leg.PREFILL, candidate, "status", str(response.status))
            return None
        dispatch.succeeded(candidate)
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
            dispatch.passed_over(request, Leg.PREFILL, candidate, "hand-off", "no kv_transfer_params in its answer")
        return params

    async def _in_time(self, response: UpstreamResponse, dispatched_at: float) -> bytes:
        """All of the answer, within the time of the leg. Raises `UpstreamError`."""
        try:
            async with asyncio.timeout(dispatched_at + self._settings.prefill_timeout_s - self._clock()):
                return await _whole(response)
        except TimeoutError:
            raise UpstreamSilent("the prefill leg's answer was not whole in time") from None


async def _whole(response: UpstreamResponse) -> bytes:
    pieces = []
    size = 0
    while chunk := await response.read():
        size += len(chunk)
        if size > _MOST_BYTES:
            raise UpstreamError(f"a prefill answer of more than {_MOST_BYTES} bytes")
        pieces.append(chunk)
    return b"".join(pieces)
