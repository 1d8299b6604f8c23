"""``kvrouter_*`` metrics of what routers share: a collector, registered only where there is something to share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core import Inflight


class SharingSource(Protocol):
    def routers(self) -> int: ...

    def owned(self) -> int: ...

    def followed(self) -> int: ...

    def others(self) -> Mapping[str, Inflight]: ...


class SharingMetrics(Collector):
    def __init__(self, source: SharingSource) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        source = self._source
        yield GaugeMetricFamily(
            "kvrouter_routers", "Routers that share their load, this one included", value=source.routers()
        )
        yield GaugeMetricFamily(
            "kvrouter_index_owned_endpoints", "Endpoints whose blocks this router writes to Redis", value=source.owned()
        )
        yield GaugeMetricFamily(
            "kvrouter_index_followed_endpoints",
            "Endpoints whose blocks this router knows from another one",
            value=source.followed(),
        )
        others = GaugeMetricFamily(
            "kvrouter_others_inflight_requests", "Other routers' requests on an endpoint", labels=["endpoint"]
        )
        for endpoint, inflight in source.others().items():
            others.add_metric([endpoint], inflight.requests)
        yield others
