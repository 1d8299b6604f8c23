"""Who may be sent a request, and what is known of each of them at this moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from router.core import (
    NO_INFLIGHT,
    NO_MATCH,
    Api,
    Candidate,
    EndpointState,
    EngineEstimate,
    Health,
    InferenceRequest,
    Role,
    TokenizedPrompt,
)
from router.errors import ModelNotFound, NoEndpoint
from router.holders import ResponseHolders
from router.inflight import InflightTracker, summed, waiting
from router.pool.models import serving
from router.ports import Clock, EndpointPool, PrefixIndex, SharedLoad
from router.scheduling.ramp import open_to_more

_WORTH: Final = 4
"""A prefix of less than one in so many blocks is no reason to wait for the endpoint that holds it."""
_MOST_PREFERRED: Final = 4
_UP: Final = (Health.HEALTHY, Health.UNKNOWN)


class Eligible:
    """Reads the pool, the index and the loads; changes nothing and waits for nothing.

    `estimates` tells what is known of an endpoint's engine by its id. `slow_start_s` (see
    `router.scheduling.ramp`) may be replaced at run time.
    """

    def __init__(
        self,
        *,
        pool: EndpointPool,
        index: PrefixIndex,
        inflight: InflightTracker,
        shared: SharedLoad,
        holders: ResponseHolders,
        clock: Clock,
        estimates: Callable[[str], EngineEstimate | None] = lambda _: None,
        slow_start_s: float = 0.0,
    ) -> None:
        self._pool = pool
        self._index = index
        self._inflight = inflight
        self._shared = shared
        self._holders = holders
        self._clock = clock
        self._estimates = estimates
        self.slow_start_s = slow_start_s

    def serving(self, model: str | None) -> list[EndpointState]:
        """All that serve the model, healthy or not."""
        return serving(model, self._pool.snapshot())

    def able(self, model: str | None) -> bool:
        """Some endpoint that may decode serves the model and is not down."""
        return any(state.health in _UP and state.endpoint.role is not Role.PREFILL for state in self.serving(model))

    def up(self, request: InferenceRequest) -> list[EndpointState]:
        """Endpoints that serve the model and are neither down nor draining. Raises ModelNotFound, NoEndpoint."""
        everyone = self._pool.snapshot()
        states = serving(request.model, everyone)
        if not states:
            if not everyone:
                raise NoEndpoint("The pool has no endpoints; name some on the command line or in the configuration.")
            raise ModelNotFound(f"The model `{(request.model or '')[:200]}` does not exist.", param="model")
        up = [state for state in states if state.health is Health.HEALTHY or state.health is Health.UNKNOWN]
        if not any(state.endpoint.role is not Role.PREFILL for state in up):
            drained = _drained(states)
            if drained or not up:
                raise _nobody(drained, states)
        return up

    def taking(self, up: Sequence[EndpointState]) -> list[EndpointState]:
        """Those of `up` that may take one more: new ones and ones on trial take few."""
        return list(open_to_more(up, self._own_requests, self._clock(), self.slow_start_s))

    def now(self, request: InferenceRequest) -> list[EndpointState]:
        """Who may be sent this request now: the one that holds the response it goes on from, if it is up.

        Raises ModelNotFound, NoEndpoint.
        """
        up = self.up(request)
        return self._held(request, up) or self.taking(up)

    def others(self, request: InferenceRequest, tried: Collection[str]) -> list[EndpointState]:
        """Who may be sent it besides those that were asked: one that starts slowly is better than nobody.

        Raises ModelNotFound, NoEndpoint.
        """
        up = self.up(request)
        held = self._held(request, up)
        return self.taking([state for state in held or up if state.endpoint.id not in tried])

    def _held(self, request: InferenceRequest, up: Sequence[EndpointState]) -> list[EndpointState]:
        previous = request.fields.get("previous_response_id") if request.api is Api.RESPONSES else None
        holder = self._holders.get(previous) if isinstance(previous, str) else None
        return [state for state in up if state.endpoint.id == holder] if holder is not None else []

    def candidates(self, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> list[Candidate]:
        match = self._index.match(prompt.block_hashes) if prompt.block_hashes else {}
        now = self._clock()
        estimates, own, others = self._estimates, self._inflight.get, self._shared.others()
        made = []
        for state in states:
            name = state.endpoint.id
            estimate = estimates(name)
            ours = waiting(own(name), estimate)
            # Other routers' requests weigh as much as our own: else N routers would all choose the same endpoint.
            theirs = others.get(name, NO_INFLIGHT)
            made.append(
                Candidate(
                    state,
                    summed(ours, theirs) if theirs.requests else ours,
                    match.get(name, NO_MATCH),
                    None if state.metrics is None else now - state.metrics.taken_at,
                    estimate,
                    theirs,
                )
            )
        return made

    def preferred(self, prompt: TokenizedPrompt, states: Sequence[EndpointState], other: Role) -> tuple[str, ...]:
        """Endpoints, none of role `other`, that hold most of what is held of this prompt, where it is worth waiting."""
        if not prompt.block_hashes:
            return ()
        match = self._index.match(prompt.block_hashes)
        able = [state.endpoint.id for state in states if state.endpoint.role is not other]
        held = {name: match[name].blocks for name in able if name in match}
        most = max(held.values(), default=0)
        if most * _WORTH < len(prompt.block_hashes):
            return ()
        best = tuple(name for name, blocks in held.items() if 2 * blocks >= most)
        return () if len(best) == len(able) else best[:_MOST_PREFERRED]

    def _own_requests(self, endpoint_id: str) -> int:
        return self._inflight.get(endpoint_id).requests


def _answering(states: Sequence[EndpointState]) -> Sequence[EndpointState]:
    """Those that may decode; all where none may."""
    return [state for state in states if state.endpoint.role is not Role.PREFILL] or states


def _drained(states: Sequence[EndpointState]) -> int:
    return sum(state.health is Health.DRAINING for state in _answering(states))


def _nobody(drained: int, states: Sequence[EndpointState]) -> NoEndpoint:
    """Why none of them may be sent anything."""
    able = len(_answering(states))
    if drained == able:
        why = (
            "Every endpoint that can answer for this model is drained: none is sent anything new until one is resumed."
        )
    elif drained:
        why = f"No endpoint that can answer for this model is healthy: of {able}, {drained} drained, the others down."
    else:
        why = "No endpoint that serves this model is healthy."
    return NoEndpoint(why, retry_after_s=1)
