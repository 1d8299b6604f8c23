"""EventWiring: each endpoint that publishes KV events has one subscriber to them, for as long as it does.

It knows the subscriber by protocol only; the index behind it is the composition root's. All that concerns one
endpoint happens in order: the subscriber of an engine that is gone is closed, and its entries forgotten, before the
one of its successor under the same id begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from router.core import Endpoint, EndpointState, IndexState
from router.observability.supervisor import Sleep, SupervisedTask, Supervisor
from router.pool.facts import KvEventSource
from router.pool.observers import PoolObserver
from router.pool.pool import Pool

_POLL_S = 0.25


class EventSubscription(Protocol):
    """A running subscriber of one endpoint."""

    @property
    def exact(self) -> bool:
        """The index holds for this endpoint what its engine said, without a gap."""
        ...

    def resync(self, reason: str) -> None:
        """What is known is of another time: begin anew. Returns at once. `reason`: a word from a bounded set."""
        ...

    async def aclose(self) -> None:
        """Ends it; after this nothing of it enters the index any more. May be called again."""
        ...


class EventSubscriberFactory(Protocol):
    def __call__(self, endpoint_id: str, source: KvEventSource) -> EventSubscription:
        """Starts subscribing and returns at once: a publisher that is not there yet is waited for."""
        ...


class _Target(NamedTuple):
    incarnation: int
    """Counts the endpoints that had this id: a successor never inherits a subscription."""
    source: KvEventSource | None


class _Lane:
    """One endpoint id: what should be, what is, and the task that leads from one to the other."""

    def __init__(self) -> None:
        self.target = _Target(0, None)
        self.applied = _Target(0, None)
        self.resync_due: str | None = None
        self.present = False
        self.subscription: EventSubscription | None = None
        self.task: SupervisedTask | None = None


class EventWiring(PoolObserver):
    """`start` it once. Close it before the supervisor."""

    def __init__(
        self,
        pool: Pool,
        subscribe: EventSubscriberFactory,
        forget: Callable[[str], None],
        supervisor: Supervisor,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`forget(endpoint_id)`: drop all that the index holds for it, its history included."""
        self._pool = pool
        self._subscribe = subscribe
        self._forget = forget
        self._supervisor = supervisor
        self._sleep = sleep
        self._lanes: dict[str, _Lane] = {}
        self._poll: SupervisedTask | None = None

    def start(self) -> None:
        self._pool.add_observer(self)
        self._poll = self._supervisor.spawn("kv event states", self._poll_states)

    async def aclose(self) -> None:
        """Closes all subscribers. The index keeps what it holds."""
        self._pool.remove_observer(self)
        lanes = list(self._lanes.values())
        self._lanes.clear()
        tasks = [task for task in (self._poll, *(lane.task for lane in lanes)) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.wait()
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                if lane.subscription is not None:
                    group.create_task(self._close(lane))

    def update_states(self) -> None:
        """Tells the pool which endpoints' index is exact now."""
        for endpoint_id, lane in self._lanes.items():
            exact = lane.subscription is not None and lane.subscription.exact and lane.applied == lane.target
            self._pool.set_index(endpoint_id, IndexState.EXACT if exact else IndexState.APPROXIMATE)

    def added(self, state: EndpointState) -> None:
        lane = self._lanes.setdefault(state.endpoint.id, _Lane())
        lane.present = True

    def removed(self, endpoint: Endpoint) -> None:
        lane = self._lanes.get(endpoint.id)
        if lane is not None:
            lane.present = False
            lane.target = _Target(lane.target.incarnation + 1, None)
            self._work(endpoint.id, lane)

    def restarted(self, endpoint: Endpoint) -> None:
        lane = self._lanes.get(endpoint.id)
        if lane is not None:
            lane.resync_due = "restarted"
            self._work(endpoint.id, lane)

    def kv_source_changed(self, endpoint: Endpoint, source: KvEventSource | None) -> None:
        lane = self._lanes.get(endpoint.id)
        if lane is not None:
            lane.target = _Target(lane.target.incarnation, source)
            self._work(endpoint.id, lane)

    def _work(self, endpoint_id: str, lane: _Lane) -> None:
        if lane.task is None or lane.task.done:
            lane.task = self._supervisor.spawn(f"kv events {endpoint_id}", lambda: self._settle(endpoint_id, lane))

    async def _settle(self, endpoint_id: str, lane: _Lane) -> None:
        """Until what is, is what should be; the latter may change at every await, and steps that failed are taken
        again when the supervisor starts this anew."""
        while True:
            target = lane.target
            if lane.applied != target:
                await self._close(lane)
                self._forget(endpoint_id)
                lane.resync_due = None
                if target == lane.target and target.source is not None:
                    lane.subscription = self._subscribe(endpoint_id, target.source)
                lane.applied = target
            elif lane.resync_due is not None:
                reason, lane.resync_due = lane.resync_due, None
                if lane.subscription is not None:
                    lane.subscription.resync(reason)
                else:
                    self._forget(endpoint_id)
            else:
                break
        if not lane.present:
            self._lanes.pop(endpoint_id, None)

    async def _close(self, lane: _Lane) -> None:
        if lane.subscription is not None:
            # Forgotten only when closed: if this is cancelled or fails, the next try closes it again.
            await lane.subscription.aclose()
            lane.subscription = None

    async def _poll_states(self) -> None:
        while True:
            self.update_states()
            await self._sleep(_POLL_S)
