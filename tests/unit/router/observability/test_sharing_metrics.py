from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest

from router.core import Inflight
from router.observability.sharing import SharingMetrics


class Source:
    def routers(self) -> int:
        return 3

    def owned(self) -> int:
        return 2

    def followed(self) -> int:
        return 1

    def others(self) -> Mapping[str, Inflight]:
        return {"a:1": Inflight(4, 5, 6)}


def test_what_is_shared_is_on_the_page() -> None:
    registry = CollectorRegistry()
    registry.register(SharingMetrics(Source()))
    lines = generate_latest(registry).decode().splitlines()
    assert {
        "kvrouter_routers 3.0",
        "kvrouter_index_owned_endpoints 2.0",
        "kvrouter_index_followed_endpoints 1.0",
        'kvrouter_others_inflight_requests{endpoint="a:1"} 4.0',
    } <= set(lines)
