"""What operations see: the parts' own counts, gathered for ``/metrics`` and ``/debug/endpoints``. No secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvindex.subscriber import KvEventSubscriber

from kvindex.index import BlockIndex
from router.api.keys import KeyRing
from router.api.lifecycle import Lifecycle
from router.core import EndpointState, Inflight
from router.inflight import InflightTracker
from router.observability.metrics import IndexFigures, Metrics
from router.observability.supervisor import Supervisor
from router.pool.describe import describe
from router.pool.pool import Pool


class Views:
    """Implements `router.api.rest.View` and `router.observability.metrics.Sources`."""

    def __init__(
        self,
        *,
        version: str,
        pool: Pool,
        index: BlockIndex,
        subscribers: Mapping[str, KvEventSubscriber],
        inflight: InflightTracker,
        lifecycle: Lifecycle,
        supervisor: Supervisor,
        metrics: Metrics | None,
        keys: Callable[[], KeyRing],
        plugin_failures: Mapping[str, int],
        loop_lag: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.version = version
        self._pool = pool
        self._index = index
        self._subscribers = subscribers
        self._inflight = inflight
        self._lifecycle = lifecycle
        self._supervisor = supervisor
        self._metrics = metrics
        self._keys = keys
        self._plugin_failures = plugin_failures
        self._loop_lag = loop_lag
        self._clock = clock

    def states(self) -> Sequence[EndpointState]:
        return self._pool.snapshot()

    def inflight(self) -> Mapping[str, Inflight]:
        return self._inflight.snapshot()

    def active(self) -> int:
        return self._lifecycle.active

    def loop_lag_s(self) -> float:
        return self._loop_lag()

    def plugin_failures(self) -> Mapping[str, int]:
        return self._plugin_failures

    def task_restarts(self) -> Mapping[str, int]:
        return {report.name: report.failures for report in self._supervisor.reports() if report.failures}

    def keys(self) -> KeyRing:
        return self._keys()

    def metrics_page(self) -> bytes | None:
        return None if self._metrics is None else self._metrics.render()

    def index(self) -> IndexFigures:
        stats = self._index.stats()
        return IndexFigures(
            blocks={
                (endpoint, tier.name.lower()): count
                for endpoint, tiers in stats.blocks.items()
                for tier, count in tiers.items()
            },
            speculative=stats.speculative + stats.history,
            stale=stats.stale,
            event_lag_s={
                name: subscriber.lag_s for name, subscriber in self._subscribers.items() if subscriber.lag_s is not None
            },
            event_age_s={
                name: subscriber.last_event_age_s
                for name, subscriber in self._subscribers.items()
                if subscriber.last_event_age_s is not None
            },
            events={
                (name, kind): count
                for name, subscriber in self._subscribers.items()
                for kind, count in subscriber.counters().items()
            },
        )

    def describe(self) -> list[dict[str, Any]]:
        stats = self._index.stats()
        now = self._clock()
        shown = []
        for entry in describe(self._pool.snapshot(), now=now):
            name = entry["id"]
            inflight = self._inflight.get(name)
            entry["inflight"] = {
                "requests": inflight.requests,
                "prefill_tokens": inflight.prefill_tokens,
                "tokens": inflight.tokens,
            }
            entry["index_blocks"] = {tier.name.lower(): count for tier, count in stats.blocks.get(name, {}).items()}
            subscriber = self._subscribers.get(name)
            if subscriber is not None:
                entry["kv_events"] = subscriber.describe()
            shown.append(entry)
        return shown
