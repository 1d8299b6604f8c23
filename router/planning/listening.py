"""Listener: an observer that turns what the router hears of requests into traffic, misses and start-up times. PURE."""

from __future__ import annotations

from collections.abc import Callable

from router.capacity.demand import Objective, Qos
from router.capacity.misses import Misses, met
from router.capacity.startup import Startups
from router.capacity.traffic import Traffic
from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed, Outcome


class Listener:
    """Implements `router.observability.events.Observer`."""

    def __init__(
        self,
        traffic: Traffic,
        startups: Startups,
        misses: Misses,
        *,
        objective: Objective,
        pool_of: Callable[[str | None], str],
        qos_of: Callable[[InferenceRequest], Qos],
        wall: Callable[[], float],
    ) -> None:
        """`pool_of`: a request's model -> its pool; `wall`: seconds since the epoch."""
        self._traffic = traffic
        self._startups = startups
        self._misses = misses
        self._objective = objective
        self._pool_of = pool_of
        self._qos_of = qos_of
        self._wall = wall

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        self._traffic.arrived(self._pool_of(request.model), self._qos_of(request), prompt.token_count, self._wall())

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None:
        self._startups.first_token(event.endpoint_id, event.since_dispatch_s)

    def on_end(self, event: Ended) -> None:
        within = met(event, self._objective)
        if within is not None and self._qos_of(event.request) is Qos.INTERACTIVE:
            self._misses.answered(self._pool_of(event.request.model), within, self._wall())
        if event.outcome is Outcome.OK and event.prompt_tokens and event.output_tokens:
            cached = event.cached_tokens if event.cached_tokens is not None else event.matched_tokens or 0
            request = event.request
            self._traffic.answered(
                self._pool_of(request.model),
                self._qos_of(request),
                event.prompt_tokens,
                min(cached, event.prompt_tokens),
                event.output_tokens,
                self._wall(),
            )
