"""The endpoints as plain values for ``/debug/endpoints`` and ``kvrouter check``. PURE. No keys, no secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from router.core import EndpointMetrics, EndpointState


def describe(
    states: Iterable[EndpointState], *, now: float, reasons: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One JSON-ready mapping for each endpoint. `now` is of the clock that dated the metrics; `reasons` are
    `Pool.reasons()`."""
    why = reasons or {}
    return [_describe(state, now, why.get(state.endpoint.id)) for state in states]


def _describe(state: EndpointState, now: float, reason: str | None) -> dict[str, Any]:
    endpoint = state.endpoint
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "role": endpoint.role.value,
        "rank": endpoint.rank,
        "labels": dict(endpoint.labels),
        "health": state.health.value,
        "reason": reason,
        "models": list(state.models),
        "version": state.version,
        "block_size": state.block_size,
        "num_blocks": state.num_blocks,
        "index": state.index.value,
        "process_start": state.process_start,
        "metrics": None if state.metrics is None else _metrics(state.metrics, now),
    }


def _metrics(metrics: EndpointMetrics, now: float) -> dict[str, Any]:
    shown = msgspec.structs.asdict(metrics)
    age = now - shown.pop("taken_at")
    return {
        "age_s": round(age, 3),
        **shown,
        "running_loras": sorted(metrics.running_loras),
        "waiting_loras": sorted(metrics.waiting_loras),
    }
