"""LMetric (OSDI 2026): uncached prompt tokens queued and own, times the batch with this request. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.replay.policies.base import uncached
from router.core import Candidate
from router.scheduling.plugins import Context


def lmetric(context: Context, candidates: Sequence[Candidate]) -> list[float]:
    return [(c.inflight.prefill_tokens + uncached(context, c)) * (c.inflight.requests + 1.0) for c in candidates]
