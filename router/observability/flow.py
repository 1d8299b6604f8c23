"""``kvrouter_flow_*`` metrics: what waits, how long it waited and how it ended, and what each tenant was served.

Labels are bounded: priorities beyond the configured ones are one label, and so are tenants beyond the first hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed

_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_MOST_TENANTS = 100
_OTHER = "other"


class FlowObserver(Protocol):
    """Told of every request that had to wait, and of every one that was not let in."""

    def on_waited(self, priority: int, seconds: float, fate: str) -> None:
        """`fate`: dispatched | expired | evicted | left."""
        ...

    def on_refused(self, priority: int, reason: str) -> None:
        """`reason`: full | shed | too-large | expired | evicted."""
        ...


class Unobserved:
    """Nobody listens."""

    def on_waited(self, priority: int, seconds: float, fate: str) -> None: ...

    def on_refused(self, priority: int, reason: str) -> None: ...


class FlowSource(Protocol):
    """Where the collector reads at scrape time."""

    def waiting(self) -> Mapping[int, tuple[int, int]]:
        """Priority -> requests and bytes."""
        ...

    def saturation(self) -> Mapping[str, float]:
        """Endpoint id -> 0 idle, 1 and above saturated."""
        ...


class FlowMetrics:
    """Implements `FlowObserver`, and `router.observability.events.Observer` for what tenants are served."""

    def __init__(self, registry: CollectorRegistry, priorities: Collection[int]) -> None:
        """`priorities`: those that have a label of their own, beside 0."""
        self.label_priorities(priorities)
        self._tenants: dict[str, str] = {}
        self._registry = registry
        self._waited = Histogram(
            "kvrouter_flow_wait_seconds",
            "Time in the queue of requests for which no endpoint had room, by what became of them",
            ["priority", "outcome"],
            buckets=_WAIT,
            registry=registry,
        )
        self._refused = Counter(
            "kvrouter_flow_refused", "Requests refused by flow control", ["priority", "reason"], registry=registry
        )
        self._served = Counter(
            "kvrouter_flow_tenant_tokens",
            "Tokens computed for a tenant: prompt tokens that were not cached, and output",
            ["tenant"],
            registry=registry,
        )

    def watch(self, source: FlowSource) -> None:
        """Reads `source` at every scrape from now on."""
        self._registry.register(_Queues(source, self.label))

    def label_priorities(self, priorities: Collection[int]) -> None:
        """These have a label of their own from now on."""
        self._priorities = {0, *priorities}

    def label(self, priority: int) -> str:
        return str(priority) if priority in self._priorities else _OTHER

    def on_waited(self, priority: int, seconds: float, fate: str) -> None:
        self._waited.labels(self.label(priority), fate).observe(seconds)

    def on_refused(self, priority: int, reason: str) -> None:
        self._refused.labels(self.label(priority), reason).inc()

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None: ...

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_end(self, event: Ended) -> None:
        tenant = event.request.caller.tenant
        if not tenant or event.endpoint_id is None:
            return
        cached = event.cached_tokens if event.cached_tokens is not None else event.matched_tokens or 0
        tokens = max((event.prompt_tokens or 0) - cached, 0) + (event.output_tokens or 0)
        self._served.labels(self._tenant(tenant)).inc(tokens)

    def _tenant(self, tenant: str) -> str:
        label = self._tenants.get(tenant)
        if label is None:
            if len(self._tenants) >= _MOST_TENANTS:
                return _OTHER
            label = self._tenants[tenant] = tenant
        return label


class _Queues(Collector):
    def __init__(self, source: FlowSource, label: Callable[[int], str]) -> None:
        self._source = source
        self._label = label

    def collect(self) -> Iterable[Metric]:
        requests = GaugeMetricFamily("kvrouter_flow_queue_requests", "Requests that wait", labels=["priority"])
        nbytes = GaugeMetricFamily("kvrouter_flow_queue_bytes", "Bytes of their bodies", labels=["priority"])
        sums: dict[str, tuple[int, int]] = {"0": (0, 0)}
        for priority, (count, size) in self._source.waiting().items():
            known = sums.get(self._label(priority), (0, 0))
            sums[self._label(priority)] = (known[0] + count, known[1] + size)
        for label, (count, size) in sums.items():
            requests.add_metric([label], count)
            nbytes.add_metric([label], size)
        yield from (requests, nbytes)
        saturation = GaugeMetricFamily(
            "kvrouter_flow_saturation", "0 idle; from 1 on a request waits rather than goes there", labels=["endpoint"]
        )
        for endpoint, value in self._source.saturation().items():
            saturation.add_metric([endpoint], value)
        yield saturation
