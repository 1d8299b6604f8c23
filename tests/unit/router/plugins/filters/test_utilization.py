from typing import Any

import pytest

from router.errors import ConfigError
from router.plugins.filters.utilization import UtilizationFilter
from tests.support.scheduling import candidate, context, ids


def capped(metric: str, value: float, **more: object) -> UtilizationFilter:
    return UtilizationFilter.create({"conditions": [{"metric": metric, "maxValue": value}], **more})


@pytest.mark.parametrize(
    ("metric", "cap", "under", "over"),
    [
        ("active-requests", 3, {"inflight": 3}, {"inflight": 4}),
        ("running-requests", 3, {"running": 3}, {"running": 4}),
        ("waiting-queue", 0, {"waiting": 0}, {"waiting": 1}),
        ("kv-cache-utilization", 0.8, {"kv_usage": 0.8}, {"kv_usage": 0.81}),
    ],
)
def test_a_cap_is_the_most_that_passes(metric: str, cap: float, under: dict[str, Any], over: dict[str, Any]) -> None:
    candidates = [candidate("under", **under), candidate("over", **over), candidate("unknown")]
    assert ids(capped(metric, cap).filter(context(), candidates)) == ["under", "unknown"]


def test_all_conditions_must_hold() -> None:
    both = UtilizationFilter.create(
        {
            "conditions": [
                {"metric": "waiting-queue", "maxValue": 0},
                {"metric": "kv-cache-utilization", "maxValue": 0.5},
            ]
        }
    )
    candidates = [
        candidate("a", waiting=0, kv_usage=0.4),
        candidate("b", waiting=0, kv_usage=0.6),
        candidate("c", waiting=1),
    ]
    assert ids(both.filter(context(), candidates)) == ["a"]


def test_a_burst_is_seen_before_the_next_scrape() -> None:
    assert capped("waiting-queue", 2).filter(context(), [candidate(running=1, waiting=0, inflight=4)]) == []


def test_when_all_are_over_nobody_or_everybody_passes() -> None:
    candidates = [candidate("a", inflight=9), candidate("b", inflight=9)]
    assert capped("active-requests", 1).filter(context(), candidates) == []
    assert ids(capped("active-requests", 1, fallbackOnEmpty=True).filter(context(), candidates)) == ["a", "b"]


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 1"):
        capped("kv-cache-utilization", 80)
    with pytest.raises(ConfigError, match="conditions"):
        UtilizationFilter.create({"conditions": []})
