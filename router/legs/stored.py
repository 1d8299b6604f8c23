"""Stored responses: asked of their holder first, then of everybody else."""

from __future__ import annotations

from router.core import Candidate, Leg
from router.errors import UpstreamFailed
from router.legs.dispatch import Dispatch
from router.legs.failures import no_answer
from router.legs.settings import LegSettings
from router.observability.events import Outcome
from router.ports import Reply, UpstreamError, UpstreamResponse
from router.trip import Trip
from router.wire.headers import response_headers


class StoredResponses:
    def __init__(self, dispatch: Dispatch, settings: LegSettings) -> None:
        self._dispatch = dispatch
        self._settings = settings

    async def run(self, trip: Trip, candidates: list[Candidate], reply: Reply) -> None:
        """Asks each endpoint in turn; the last one's 404 is the client's.

        Raises `RouterError` when no endpoint gave an answer, or when the answer broke off.
        """
        request = trip.request
        failure: UpstreamError | None = None
        for attempt, candidate in enumerate(candidates):
            trip.attempts = attempt + 1
            lease = self._dispatch.take_uncounted(candidate)
            try:
                try:
                    response = await self._dispatch.open(
                        request, candidate, request.body, self._settings.first_byte_timeout_s
                    )
                except UpstreamError as error:
                    self._dispatch.failed(request, Leg.DECODE, candidate, error)
                    failure = error
                    continue
                try:
                    if response.status == 404 and attempt + 1 < len(candidates):
                        continue
                    await self._give(trip, candidate, response, reply)
                    return
                finally:
                    await response.close()
            finally:
                lease.release()
        raise no_answer(failure)

    async def _give(self, trip: Trip, candidate: Candidate, response: UpstreamResponse, reply: Reply) -> None:
        trip.endpoint_id, trip.status = candidate.id, response.status
        try:
            await reply.start(response.status, response_headers(response.headers))
            while chunk := await response.read():
                await reply.send(chunk)
        except UpstreamError as error:
            trip.outcome = Outcome.CUT
            self._dispatch.failed(trip.request, Leg.DECODE, candidate, error)
            raise UpstreamFailed("The engine's answer broke off before its end.") from None
        await reply.end()
        trip.outcome = Outcome.OK if response.status < 400 else Outcome.CLIENT_ERROR
