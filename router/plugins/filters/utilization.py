"""utilization-filter: endpoints under all given caps. PURE.

A value that is not known passes its cap: a missing scrape must not take an endpoint out of service. Counts include
what was dispatched since the scrape (`router.scheduling.load`). When it leaves nobody the client gets 429, unless
`fallbackOnEmpty`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import loads, running, waiting
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

Metric = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]


def _kv_usages(candidates: Sequence[Candidate]) -> list[float | None]:
    scraped = [candidate.state.metrics for candidate in candidates]
    return [None if metrics is None else metrics.kv_usage for metrics in scraped]


_VALUES: Mapping[Metric, Callable[[Sequence[Candidate]], Sequence[float | None]]] = {
    "active-requests": loads,
    "running-requests": running,
    "waiting-queue": waiting,
    "kv-cache-utilization": _kv_usages,
}


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An endpoint passes with at most `maxValue` (requests; a share of 1 for kv-cache-utilization)."""

    metric: Metric
    max_value: Annotated[float, Meta(ge=0)]

    def __post_init__(self) -> None:
        if self.metric == "kv-cache-utilization" and self.max_value > 1:
            raise ValueError("maxValue of kv-cache-utilization is a share: give 0 to 1")


class UtilizationFilter(Parameters, frozen=True):
    saturation: ClassVar[bool] = True

    conditions: Annotated[tuple[Condition, ...], Meta(min_length=1)]
    fallback_on_empty: bool = False

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        kept = candidates
        for condition in self.conditions:
            cap = condition.max_value
            values = _VALUES[condition.metric](kept)
            kept = [candidate for candidate, value in zip(kept, values, strict=True) if value is None or value <= cap]
        return candidates if self.fallback_on_empty and not kept else kept
