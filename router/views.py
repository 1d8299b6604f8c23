"""What operations see: the parts' own counts, gathered for ``/metrics`` and ``/debug/endpoints``. No secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.api.keys import KeyRing
from router.api.lifecycle import Lifecycle
from router.core import Endpoint, EndpointState, Inflight
from router.gate import Gate
from router.indexing import Indexing
from router.inflight import InflightTracker
from router.loop import LoopLag
from router.observability.decisions import RecentDecisions
from router.observability.metrics import IndexFigures, Metrics
from router.observability.supervisor import Supervisor
from router.planning.service import Planning
from router.planning.view import described
from router.pool.describe import describe
from router.pool.observers import PoolObserver
from router.pool.pool import Pool
from router.ports import Clock
from router.slots import Slots


class Views:
    """Implements `router.api.rest.View`, `router.observability.metrics.Sources` and
    `router.observability.flow.FlowSource`."""

    def __init__(
        self,
        *,
        version: str,
        pool: Pool,
        indexing: Indexing,
        inflight: InflightTracker,
        gate: Gate,
        lifecycle: Lifecycle,
        supervisor: Supervisor,
        metrics: Metrics | None,
        decisions: RecentDecisions,
        keys: Callable[[], KeyRing],
        plugin_failures: Mapping[str, int],
        rate_limited: Mapping[str, int],
        loop_lag: LoopLag,
        slots: Slots,
        planning: Planning | None,
        clock: Clock,
    ) -> None:
        self.version = version
        self._pool = pool
        self._indexing = indexing
        self._inflight = inflight
        self._gate = gate
        self._lifecycle = lifecycle
        self._supervisor = supervisor
        self._metrics = metrics
        self._decisions = decisions
        self._keys = keys
        self._plugin_failures = plugin_failures
        self._rate_limited = rate_limited
        self._loop_lag = loop_lag
        self._slots = slots
        self._planning = planning
        self._clock = clock

    def states(self) -> Sequence[EndpointState]:
        return self._pool.snapshot()

    def inflight(self) -> Mapping[str, Inflight]:
        return self._inflight.snapshot()

    def active(self) -> int:
        return self._lifecycle.active

    def loop_lag_s(self) -> float:
        return self._loop_lag.seconds

    def plugin_failures(self) -> Mapping[str, int]:
        return self._plugin_failures

    def rate_limited(self) -> Mapping[str, int]:
        return self._rate_limited

    def task_restarts(self) -> Mapping[str, int]:
        return {report.name: report.failures for report in self._supervisor.reports() if report.failures}

    def slots(self) -> dict[str, Any]:
        return self._slots.describe()

    def keys(self) -> KeyRing:
        return self._keys()

    def metrics_page(self) -> bytes | None:
        return None if self._metrics is None else self._metrics.render()

    def index(self) -> IndexFigures:
        stats = self._indexing.stats()
        following = self._indexing.following()
        lags: dict[str, float] = {}
        ages: dict[str, float] = {}
        for name, followed in following.items():
            subscriber = followed.subscriber
            if subscriber is not None and subscriber.lag is not None:
                lags[name] = subscriber.lag
            if subscriber is not None and subscriber.last_event_age is not None:
                ages[name] = subscriber.last_event_age
        return IndexFigures(
            blocks={
                (endpoint, tier.name.lower()): count
                for endpoint, tiers in stats.blocks.items()
                for tier, count in tiers.items()
            },
            speculative=stats.speculative,
            history=stats.history,
            stale=stats.stale,
            event_lag_s=lags,
            event_age_s=ages,
            events={
                (name, kind): count for name, followed in following.items() for kind, count in followed.counts().items()
            },
        )

    def waiting(self) -> Mapping[int, tuple[int, int]]:
        return self._gate.waiting()

    def saturation(self) -> Mapping[str, float]:
        return self._gate.saturation(self._pool.snapshot())

    def flow(self) -> dict[str, Any]:
        """Queues and accounts, and what each endpoint has against what it can take."""
        saturation = self._gate.saturation(self._pool.snapshot())
        endpoints = {
            name: {"saturation": round(value, 3), "requests": self._inflight.get(name).requests}
            for name, value in saturation.items()
        }
        return {**self._gate.describe(), "endpoints": endpoints}

    def plan(self) -> dict[str, Any]:
        return described(None if self._planning is None else self._planning.status, self._clock())

    def wakes(self) -> bool:
        return self._planning is not None

    def decisions(self) -> list[dict[str, Any]]:
        return self._decisions.recent()

    def describe(self) -> list[dict[str, Any]]:
        stats = self._indexing.stats()
        now = self._clock()
        shown = []
        for entry in describe(self._pool.snapshot(), now=now, reasons=self._pool.reasons()):
            name = entry["id"]
            inflight = self._inflight.get(name)
            entry["inflight"] = {
                "requests": inflight.requests,
                "prefill_tokens": inflight.prefill_tokens,
                "tokens": inflight.tokens,
            }
            entry["index_blocks"] = {tier.name.lower(): count for tier, count in stats.blocks.get(name, {}).items()}
            followed = self._indexing.following().get(name)
            if followed is not None:
                entry["kv_events"] = followed.describe()
            shown.append(entry)
        return shown


class SeriesOfEndpoints(PoolObserver):
    """Drops an endpoint's metric series when it leaves the pool, so that churn does not grow the page."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def removed(self, endpoint: Endpoint) -> None:
        self._metrics.forget_endpoint(endpoint.id)
