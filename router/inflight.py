"""InflightTracker: what this router has on each endpoint, exactly. PURE.

A `Lease` is taken before dispatch and released exactly once, by the one who took it. Counts are this process's own;
a scraped metric never enters them.
"""

from __future__ import annotations

from router.core import NO_INFLIGHT, EngineEstimate, Inflight


class Lease:
    """One leg's slot on one endpoint. `first_token` and `release` may be called in any order and repeatedly."""

    __slots__ = ("_prefill_tokens", "_released", "_tokens", "_tracker", "endpoint_id")

    def __init__(self, tracker: InflightTracker, endpoint_id: str, prefill_tokens: int, tokens: int) -> None:
        self._tracker = tracker
        self.endpoint_id = endpoint_id
        self._prefill_tokens = prefill_tokens
        self._tokens = tokens
        self._released = False

    def first_token(self) -> None:
        """The prefill is over: its tokens no longer wait."""
        if not self._released and self._prefill_tokens:
            self._tracker.add(self.endpoint_id, 0, -self._prefill_tokens, 0)
            self._prefill_tokens = 0

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._tracker.add(self.endpoint_id, -1, -self._prefill_tokens, -self._tokens)


class InflightTracker:
    """Endpoint id -> `Inflight`. An endpoint with nothing in flight takes no memory."""

    __slots__ = ("_by_endpoint",)

    def __init__(self) -> None:
        self._by_endpoint: dict[str, Inflight] = {}

    def get(self, endpoint_id: str) -> Inflight:
        return self._by_endpoint.get(endpoint_id, NO_INFLIGHT)

    @property
    def busy(self) -> bool:
        """Something is in flight somewhere."""
        return bool(self._by_endpoint)

    def snapshot(self) -> dict[str, Inflight]:
        return dict(self._by_endpoint)

    def acquire(self, endpoint_id: str, *, prefill_tokens: int, tokens: int) -> Lease:
        """`prefill_tokens`: uncached prompt tokens of this leg; `tokens`: prompt plus expected output."""
        self.add(endpoint_id, 1, prefill_tokens, tokens)
        return Lease(self, endpoint_id, prefill_tokens, tokens)

    def add(self, endpoint_id: str, requests: int, prefill_tokens: int, tokens: int) -> None:
        """For `Lease` only: shifts the counts of one endpoint."""
        now = self._by_endpoint.get(endpoint_id, NO_INFLIGHT)
        new = Inflight(now.requests + requests, now.prefill_tokens + prefill_tokens, now.tokens + tokens)
        if new.requests < 0 or new.prefill_tokens < 0 or new.tokens < 0:
            raise AssertionError(f"in-flight accounting of {endpoint_id} fell below zero: {new}")
        if new == NO_INFLIGHT:
            self._by_endpoint.pop(endpoint_id, None)
        else:
            self._by_endpoint[endpoint_id] = new


def waiting(counted: Inflight, estimate: EngineEstimate | None) -> Inflight:
    """`counted`, less the prefill that must be over by what is known of the engine: an answer that is not streamed
    shows its first token with its last."""
    if estimate is None or estimate.queued_tokens >= counted.prefill_tokens:
        return counted
    return Inflight(counted.requests, estimate.queued_tokens, counted.tokens)


def summed(one: Inflight, other: Inflight) -> Inflight:
    return Inflight(one.requests + other.requests, one.prefill_tokens + other.prefill_tokens, one.tokens + other.tokens)
