"""Stored responses: asked of their holder first, then of everybody else."""

from __future__ import annotations

from router.answering import outcome_of
from router.core import Candidate, Leg
from router.errors import NoEndpoint, UpstreamFailed
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

    async def run(self, trip: Trip, candidates: list[Candidate], holder: str | None, reply: Reply) -> None:
        """Asks each endpoint in turn. `holder`: who is known to hold it, asked or not; None: anybody may.

        That it does not exist is the client's answer when everybody says so who may hold it. Raises `RouterError` when
        no endpoint gave an answer, when one of them could not be asked, or when the answer broke off.
        """
        request = trip.request
        failure: UpstreamError | None = None
        unheard = holder is not None and all(candidate.id != holder for candidate in candidates)
        missing = False
        for attempt, candidate in enumerate(candidates):
            trip.attempts = attempt + 1
            last = attempt + 1 == len(candidates)
            lease = self._dispatch.take_uncounted(candidate)
            try:
                try:
                    response = await self._dispatch.open(
                        request, candidate, request.body, self._settings.first_byte_timeout_s
                    )
                except UpstreamError as error:
                    self._dispatch.failed(request, Leg.DECODE, candidate, error)
                    failure, unheard = error, True
                    continue
                try:
                    self._dispatch.note_answer(trip, candidate, response.status)
                    if response.status in self._settings.retry_statuses and not last:
                        self._dispatch.passed_over(request, Leg.DECODE, candidate, "status", str(response.status))
                        unheard = True
                        continue
                    if response.status == 404 and candidate.id != holder and (unheard or not last):
                        missing = True
                        continue
                    await self._give(trip, candidate, response, reply)
                    return
                finally:
                    await response.close()
            finally:
                lease.release()
        if missing:
            raise NoEndpoint("An endpoint that may hold this response cannot be asked now.", retry_after_s=1)
        raise no_answer(failure, trip.attempts)

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
        trip.outcome = outcome_of(trip.request.api, response.status)
