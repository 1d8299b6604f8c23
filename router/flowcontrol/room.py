"""Which endpoints have room for how much more. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.core import EndpointState, EngineEstimate, Role
from router.flowcontrol.entries import Lane
from router.flowcontrol.saturation import Detector, Seen
from router.inflight import InflightTracker, summed
from router.ports import SharedLoad

_PREFILL, _DECODE = Role.PREFILL, Role.DECODE


class Gauge:
    """How saturated an endpoint is by all that routers have on it, and by places that are held for what comes."""

    def __init__(
        self,
        detector: Detector,
        inflight: InflightTracker,
        shared: SharedLoad,
        estimates: Callable[[str], EngineEstimate | None],
    ) -> None:
        self.detector = detector
        """May be replaced at run time."""
        self._inflight = inflight
        self._shared = shared
        self._estimates = estimates
        self.held = InflightTracker()
        """Places of requests that are decided and whose legs have not taken their leases."""

    def saturation(self, state: EndpointState, now: float, spare: int = 0) -> float:
        """1 and above: no room. As if there were `spare` more requests on it, if it has any: where nothing is under way
        nothing is kept either, or an endpoint that takes few requests would stand idle before those that wait."""
        name = state.endpoint.id
        own = self._inflight.get(name)
        others = self._shared.others().get(name)
        load = own if others is None else summed(own, others)
        if self.held.busy:
            load = summed(load, self.held.get(name))
        seen = Seen(state, load, None, now, spare if load.requests else 0)
        saturation = self.detector.saturation(seen)
        if saturation < 1.0:
            return saturation
        estimate = self._estimates(name)
        if estimate is None:
            return saturation
        return self.detector.saturation(seen._replace(unanswered=seen.requests - estimate.decoding))

    def decode_room(self, states: Sequence[EndpointState], now: float, spare: int = 0) -> bool:
        """One that may decode has room for more than `spare`, or is idle."""
        return any(state.endpoint.role is not _PREFILL and self.saturation(state, now, spare) < 1.0 for state in states)

    def prefill_room(self, states: Sequence[EndpointState], now: float) -> bool:
        """One that may prefill has room."""
        return any(state.endpoint.role is not _DECODE and self.saturation(state, now) < 1.0 for state in states)


class Room:
    """Which endpoints have room at one time. To be told of each dispatch."""

    def __init__(self, lanes: Mapping[Lane, Sequence[EndpointState]], gauge: Gauge, now: float) -> None:
        """`lanes`: the endpoints that could take what waits in each."""
        self._lanes = lanes
        self._gauge = gauge
        self._now = now
        self._known: dict[tuple[str, int], bool] = {}

    def forget(self) -> None:
        """Something was dispatched: those that had room may have none."""
        self._known = {key: False for key, has_room in self._known.items() if not has_room}

    def open(self, spare: int) -> dict[Lane, list[str]]:
        """Lane -> endpoints with room for more than `spare`, or idle; a lane without is absent."""
        found = {}
        for lane, states in self._lanes.items():
            free = [state for state in states if self._free(state, spare)]
            decode = any(state.endpoint.role is not _PREFILL for state in free)
            if decode and (not lane.splits or any(state.endpoint.role is not _DECODE for state in free)):
                found[lane] = [state.endpoint.id for state in free]
        return found

    def _free(self, state: EndpointState, spare: int) -> bool:
        key = (state.endpoint.id, spare)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._gauge.saturation(state, self._now, spare) < 1.0
        return known
