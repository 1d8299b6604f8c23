from __future__ import annotations

import json

from router.pool.describe import describe
from router.pool.pool import Pool
from router.pool.reading import read_page
from router.pool.spec import EndpointSpec
from tests.support.pool import page


def test_endpoints_are_described_with_ages_and_reasons_and_without_keys() -> None:
    pool = Pool()
    pool.set_endpoints([EndpointSpec(url="http://a:1", api_key="secret"), EndpointSpec(url="http://b:1")])
    pool.read_page("a:1", read_page(page(running=2), 10.0))
    pool.probe_failed("b:1", "refused")
    first, second = describe(pool.snapshot(), now=12.5, reasons=pool.reasons())
    assert (first["id"], first["health"], first["reason"]) == ("a:1", "unknown", "not probed yet")
    assert (first["metrics"]["age_s"], first["metrics"]["running"]) == (2.5, 2)
    assert (second["health"], second["reason"], second["metrics"]) == ("unhealthy", "probe failed: refused", None)
    assert "secret" not in json.dumps([first, second])
