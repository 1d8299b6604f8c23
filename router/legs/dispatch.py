"""Dispatch: what every attempt of every leg does: a slot taken, the request opened, its fate reported."""

from __future__ import annotations

from router.core import NO_MATCH, Candidate, IndexState, InferenceRequest, Leg, TokenizedPrompt
from router.inflight import InflightTracker, Lease
from router.observability.events import Dispatched, LegFailed, Observer
from router.ports import (
    EndpointPool,
    PrefixIndex,
    Reliance,
    Upstream,
    UpstreamAbandoned,
    UpstreamError,
    UpstreamOrphaned,
    UpstreamResponse,
)
from router.trip import Trip

_ERRORS = frozenset({500, 502, 504})
"""A row of these is the endpoint's fault. Not 503, which a busy engine says, nor any 4xx, which are the request's."""


class Dispatch:
    def __init__(
        self,
        *,
        upstream: Upstream,
        pool: EndpointPool,
        index: PrefixIndex,
        inflight: InflightTracker,
        observer: Observer,
    ) -> None:
        self._upstream = upstream
        self._pool = pool
        self._index = index
        self._inflight = inflight
        self._observer = observer

    def usable(self, endpoint_id: str) -> bool:
        """Whether it may be asked for anything now."""
        return self._pool.usable(endpoint_id)

    def next(self, left: list[Candidate]) -> Candidate | None:
        """Takes the best of `left` that may be asked now: since the decision some may have failed others."""
        candidate = next((each for each in left if self.usable(each.id)), None)
        if candidate is not None:
            left.remove(candidate)
        return candidate

    def take(self, candidate: Candidate, prompt: TokenizedPrompt, *, output_tokens: int, prefills: bool) -> Lease:
        """The slot of one attempt; the caller releases it."""
        uncached = max(prompt.token_count - candidate.matched_tokens(prompt), 0) if prefills else 0
        return self._inflight.acquire(candidate.id, prefill_tokens=uncached, tokens=prompt.token_count + output_tokens)

    def take_uncounted(self, candidate: Candidate) -> Lease:
        """The same for what computes nothing."""
        return self._inflight.acquire(candidate.id, prefill_tokens=0, tokens=0)

    def dispatched(
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

    def waits_for_kv(self, request: InferenceRequest, candidate: Candidate, prompt: TokenizedPrompt) -> bool:
        """Whether the endpoint, which has not begun to answer, may not have read the KV that was handed over to it.

        Its own events tell, where it sends them. Without them a stream's silence is taken for it; an answer in one
        piece is silent until its end, and may be all but done.
        """
        if candidate.state.index is not IndexState.EXACT or not prompt.block_hashes:
            return request.stream
        held = self._index.match(prompt.block_hashes).get(candidate.id, NO_MATCH)
        return held.blocks < (prompt.token_count - 1) // prompt.block_size

    async def open(
        self,
        request: InferenceRequest,
        candidate: Candidate,
        body: bytes,
        timeout_s: float,
        relies_on: Reliance | None = None,
    ) -> UpstreamResponse:
        """Raises `UpstreamError`, see `router.ports.Upstream.open`."""
        endpoint = candidate.endpoint
        headers = [*request.headers, (b"x-request-id", request.request_id.encode("ascii"))]
        if endpoint.api_key is not None:
            headers = [field for field in headers if field[0] != b"authorization"]
            headers.append((b"authorization", b"Bearer " + endpoint.api_key.encode()))
        if endpoint.rank is not None:
            headers.append((b"x-data-parallel-rank", str(endpoint.rank).encode()))
        return await self._upstream.open(
            endpoint,
            request.method.encode("ascii"),
            request.path,
            headers,
            body,
            first_byte_timeout_s=timeout_s,
            relies_on=relies_on,
        )

    def failed(self, request: InferenceRequest, leg: Leg, candidate: Candidate, error: UpstreamError) -> None:
        """The endpoint could not be reached or did not keep to HTTP."""
        if not isinstance(error, UpstreamAbandoned | UpstreamOrphaned):
            self._pool.report_failure(candidate.endpoint)
        self.passed_over(request, leg, candidate, error.kind, str(error))

    def passed_over(
        self, request: InferenceRequest, leg: Leg, candidate: Candidate, kind: str, detail: str = ""
    ) -> None:
        """The attempt brought nothing that could be used. `kind`: a metric label; `detail`: what it was, for people."""
        self._observer.on_leg_failed(
            LegFailed(request_id=request.request_id, leg=leg, endpoint_id=candidate.id, kind=kind, detail=detail)
        )

    def note_status(self, candidate: Candidate, status: int) -> None:
        """The engine answered: what its status says of its health, if that is not good."""
        if status in _ERRORS:
            self._pool.report_error(candidate.endpoint)

    def note_answer(self, trip: Trip, candidate: Candidate, status: int) -> None:
        """`note_status` for a request that others may be asked for too.

        A 500 may be its request's fault, and a request that breaks every engine must not take them out one by one. So
        the one that would take an endpoint out does so only once another endpoint has answered the same request well.
        """
        doubted, endpoint = trip.doubted, candidate.endpoint
        if doubted is not None and doubted.id != endpoint.id:
            if status == 500:
                trip.doubted = None
                self._pool.excuse(doubted)
                self._pool.excuse(endpoint)
                return
            if status < 400:
                trip.doubted = None
                self._pool.report_error(doubted)
        if status == 500 and self._pool.on_brink(endpoint):
            trip.doubted = endpoint
        else:
            self.note_status(candidate, status)

    def succeeded(self, candidate: Candidate) -> None:
        self._pool.report_success(candidate.endpoint)
