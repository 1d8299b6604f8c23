"""Observing: who is told of every request, and what ``/metrics`` says."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from router.assembly import flow, routing
from router.assembly.shared import Shared
from router.observability.access import AccessLog
from router.observability.decisions import RecentDecisions
from router.observability.events import Answered, Observer
from router.observability.flow import FlowMetrics, FlowObserver, Unobserved
from router.observability.metrics import Metrics
from router.observability.requestlog import RequestLogMetrics
from router.observability.sharing import SharingMetrics
from router.planning.service import Planning
from router.planning.view import PlanMetrics
from router.pool.pool import Pool
from router.ports import Clock
from router.settings import Settings
from router.sharing import SharingView
from router.views import SeriesOfEndpoints, Views


class Observing:
    """`metrics` is None where they are switched off."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Opens nothing yet."""
        self._clock = clock
        self.metrics = Metrics(version("kvrouter")) if settings.metrics.enabled else None
        self.decisions = RecentDecisions(clock)
        self._flow = None if self.metrics is None else FlowMetrics(self.metrics.registry, flow.priorities(settings))
        self._access = AccessLog() if settings.server.access_log else None
        self._request_log = routing.request_log(settings)

    @property
    def of_flow(self) -> FlowObserver:
        return Unobserved() if self._flow is None else self._flow

    def of_requests(self) -> list[Observer]:
        told = (self.decisions, self.metrics, self._flow, self._access, self._request_log)
        return [observer for observer in told if observer is not None]

    def on_answered(self, event: Answered) -> None:
        """Implements `router.observability.events.AnswerObserver`."""
        if self.metrics is not None:
            self.metrics.on_answered(event)
        if self._access is not None:
            self._access.on_answered(event)

    def watch(self, views: Views, pool: Pool, planning: Planning | None, shared: Shared | None) -> None:
        """What the metrics page reads from now on."""
        if self.metrics is None or self._flow is None:
            return
        registry = self.metrics.registry
        self.metrics.watch(views)
        self._flow.watch(views)
        if planning is not None:
            registry.register(PlanMetrics(lambda: planning.status, self._clock))
        pool.add_observer(SeriesOfEndpoints(self.metrics))
        if self._request_log is not None:
            registry.register(RequestLogMetrics(self._request_log))
        if shared is not None:
            registry.register(SharingMetrics(SharingView(shared.index, shared.board)))

    def apply(self, settings: Settings) -> None:
        """Takes over which priorities have labels of their own."""
        if self._flow is not None:
            self._flow.label_priorities(flow.priorities(settings))

    def start(self) -> None:
        """Opens the request log. Raises `ConfigError`."""
        if self._request_log is not None:
            self._request_log.start()

    async def aclose(self) -> None:
        if self._request_log is not None:
            await asyncio.to_thread(self._request_log.close)
