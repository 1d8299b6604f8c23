"""Settings of flow control: what waits while no endpoint has room, for how long, and whose turn it is. PURE."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from router.settings.section import Section
from router.settings.words import Count, CountOrZero, Seconds, each_once

Priority = Annotated[int, Field(ge=-100, le=100)]


def _positive(weights: dict[str, float]) -> dict[str, float]:
    for tenant, weight in weights.items():
        if not 0.001 <= weight <= 1000.0:
            raise ValueError(f"gives {tenant!r} the weight {weight:g}: it must lie between 0.001 and 1000")
    return weights


class ObjectiveSettings(Section):
    """What requests of one objective (`x-llm-d-inference-objective`) are entitled to."""

    name: str = Field(min_length=1, max_length=128)
    """As the header or the key's rights name it."""
    priority: Priority = 0
    """Higher goes first; negative: sheddable, refused first when there is no room."""
    ttft_slo_ms: Seconds | None = None
    """When the first token should be there, for `ordering: edf`; null: what the request says
    (`x-llm-d-slo-ttft-ms`), else the longest wait."""
    max_wait_s: Seconds | None = None
    """Longest time in the queue; null: the class's."""


class FlowClassSettings(Section):
    """Limits of one priority class, in place of the common ones."""

    priority: Priority
    """The class."""
    max_requests: Count | None = None
    """Requests that may wait; null: `flow_control.class_max_requests`."""
    max_bytes: Count | None = None
    """Bytes of their bodies; null: `flow_control.class_max_bytes`."""
    max_wait_s: Seconds | None = None
    """Longest time in the queue; null: `flow_control.max_wait_s`."""


class FlowControlSettings(Section):
    """What happens while every endpoint that could serve a request is saturated: it waits in the router, by priority
    and in turn with other tenants, and is answered 429 when there is no room or not in time."""

    enabled: bool = True
    """Let requests wait in the router; false: they are sent at once, and wait in the engines."""
    detector: Literal["auto", "utilization", "concurrency"] = "auto"
    """When an endpoint is saturated. `utilization`: by its own queue and KV usage as last scraped; `concurrency`: by
    what routers have in flight there; `auto`: by either."""
    queue_depth: Count = 4
    """Requests that may wait inside an engine: enough to keep it busy, few enough not to be in each other's way."""
    kv_usage: float = Field(default=0.95, gt=0, le=1)
    """KV-cache usage from which an endpoint is saturated."""
    max_metrics_age_s: Seconds = 5.0
    """Scraped metrics older than this saturate nothing."""
    max_requests_per_endpoint: Count | None = None
    """Requests that all routers together may have on an endpoint; null: as many as the engine is seen to run, plus
    `queue_depth`."""
    holdback: CountOrZero = 1
    """Requests of room on each endpoint that lower priorities leave free while a higher one sends requests, so that
    these need not wait for one to end. Of an endpoint with nothing under way none is kept."""
    max_tokens_per_endpoint: Count | None = None
    """Prompt and expected output tokens that all routers together may have on an endpoint; null: not limited."""
    ordering: Literal["fcfs", "edf"] = "fcfs"
    """Within a tenant and class: `fcfs` first come first served, with those first whose prefix lies where there is
    room; `edf` the earliest deadline first."""
    max_wait_s: Seconds = 30.0
    """Longest time in the queue; past it a request is answered 429, or 503 when no endpoint is healthy."""
    max_requests: Count = 2000
    """Requests that may wait in one router process."""
    max_bytes: Count = 256 * 1024 * 1024
    """Bytes of their bodies."""
    class_max_requests: Count = 1500
    """Of these, requests of any one priority."""
    class_max_bytes: Count = 192 * 1024 * 1024
    """Bytes of their bodies."""
    sheddable_share: float = Field(default=0.5, ge=0, le=1)
    """Part of `max_requests` and `max_bytes` that requests of negative priority may fill."""
    objectives: Annotated[tuple[ObjectiveSettings, ...], each_once("name")] = ()
    """Objectives by name. A key may name none beside them; one that a trusted peer names beside them is priority 0."""
    classes: Annotated[tuple[FlowClassSettings, ...], each_once("priority")] = ()
    """Priorities with limits of their own."""
    tenant_weights: Annotated[dict[str, float], AfterValidator(_positive)] = Field(default_factory=dict)
    """Tenant to weight: tokens served to tenants of a class that keep waiting are as their weights; 1 for others."""
    quantum_tokens: Count = 256
    """Tokens that a round gives to a tenant of weight 1: more keeps a tenant's prefixes together, less is smoother."""
