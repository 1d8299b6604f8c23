"""Saturation: whether an endpoint has as much as it can work on, by policy. PURE.

0 is idle, 1 and above saturated. Two signals, as in llm-d:

- utilization: what the last scrape said of the engine's own queue and KV space. A scrape is up to a second old, so the
  waiting count is carried on by what routers have sent and finished since, and it cannot exceed what still waits for a
  first token. Old metrics saturate nothing.
- concurrency: requests (or tokens) that routers have on the endpoint against a limit. Where none is configured it is
  learnt: an engine that lets requests wait runs as many as it can (vLLM's ``max_num_seqs``, which it does not publish,
  or what its KV space allows). One that runs more than that with nothing waiting has shown the figure to be too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from router.core import EndpointMetrics, EndpointState, Inflight

UNKNOWN_LIMIT = 256
"""Running requests an engine is taken to be capable of while nothing is known: vLLM's smallest default."""


class Seen(NamedTuple):
    """One endpoint as it is now."""

    state: EndpointState
    inflight: Inflight
    """This router's and all others'."""
    unanswered: int | None
    """Of `requests`, those whose first token has not been seen; None when unknown."""
    now: float
    spare: int = 0
    """Requests that are taken to be there too, beside `inflight`; none of them has begun."""

    @property
    def requests(self) -> int:
        return self.inflight.requests + self.spare


class Detector(Protocol):
    def saturation(self, seen: Seen) -> float: ...


class _Watched:
    __slots__ = ("limit", "metrics", "requests_then")

    def __init__(self) -> None:
        self.metrics: EndpointMetrics | None = None
        self.requests_then = 0
        self.limit: int | None = None


class Watch:
    """What scrapes have taught about each endpoint."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def look(self, seen: Seen) -> _Watched:
        """Takes in a scrape that was not seen before."""
        state = seen.state
        name = state.endpoint.id
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = _Watched()
        metrics = state.metrics
        if metrics is not watched.metrics and metrics is not None:
            watched.metrics = metrics
            # What was on its way when the page was made is not told; a round trip's worth of requests is.
            watched.requests_then = seen.inflight.requests
            watched.limit = _learnt(watched.limit, metrics)
        return watched

    def limit(self, endpoint_id: str) -> int | None:
        """Requests the engine was seen to run at most; None while unknown."""
        watched = self._watched.get(endpoint_id)
        return None if watched is None else watched.limit

    def forget(self, endpoint_id: str) -> None:
        self._watched.pop(endpoint_id, None)


def _learnt(limit: int | None, metrics: EndpointMetrics) -> int | None:
    running, waiting = metrics.running, metrics.waiting
    if running is None or waiting is None:
        return limit
    if waiting > 0 and running > 0:
        return int(running)
    return None if limit is not None and running > limit else limit


class UtilizationDetector:
    def __init__(self, watch: Watch, *, queue_depth: int, kv_usage: float, max_age_s: float) -> None:
        self._watch = watch
        self._queue_depth = queue_depth
        self._kv_usage = kv_usage
        self._max_age_s = max_age_s

    def saturation(self, seen: Seen) -> float:
        metrics = seen.state.metrics
        if metrics is None or seen.now - metrics.taken_at > self._max_age_s:
            return 0.0
        watched = self._watch.look(seen)
        since = seen.requests - watched.requests_then
        waiting = metrics.waiting or 0.0
        if waiting <= 0.0:
            limit = UNKNOWN_LIMIT if watched.limit is None else watched.limit
            waiting = (metrics.running or 0.0) - limit
        waiting += since
        if seen.unanswered is not None and seen.unanswered < waiting:
            waiting = float(seen.unanswered)
        queue = waiting / self._queue_depth if waiting > 0.0 else 0.0
        kv = (metrics.kv_usage or 0.0) / self._kv_usage
        return queue if queue > kv else kv


class ConcurrencyDetector:
    def __init__(
        self, watch: Watch, *, queue_depth: int, max_requests: int | None = None, max_tokens: int | None = None
    ) -> None:
        """`queue_depth`: requests beyond a learnt limit that an engine is given to keep it busy."""
        self._watch = watch
        self._queue_depth = queue_depth
        self._max_requests = max_requests
        self._max_tokens = max_tokens

    def saturation(self, seen: Seen) -> float:
        inflight = seen.inflight
        tokens = 0.0 if self._max_tokens is None else inflight.tokens / self._max_tokens
        if self._max_requests is not None:
            requests = seen.requests / self._max_requests
        else:
            requests = self._beyond_what_it_runs(seen)
        return requests if requests > tokens else tokens

    def _beyond_what_it_runs(self, seen: Seen) -> float:
        limit = self._watch.look(seen).limit
        beyond = seen.requests - (UNKNOWN_LIMIT if limit is None else limit)
        if beyond <= 0:
            return 0.0
        if seen.unanswered is not None and seen.unanswered < beyond:
            beyond = seen.unanswered
        return beyond / self._queue_depth


class EitherDetector:
    """The largest of several."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = tuple(detectors)

    def saturation(self, seen: Seen) -> float:
        most = 0.0
        for detector in self._detectors:
            saturation = detector.saturation(seen)
            if saturation > most:
                most = saturation
        return most


class Unlimited:
    """Nothing is ever saturated: requests wait in the engines."""

    def saturation(self, seen: Seen) -> float:
        return 0.0
