"""kv-cache-utilization-scorer: ``1 - KV usage``, as scraped; 0.5 where it is unknown. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import NEUTRAL
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class KvCacheUtilizationScorer(Parameters, frozen=True):
    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        scores: list[float] = []
        for candidate in candidates:
            metrics = candidate.state.metrics
            usage = None if metrics is None else metrics.kv_usage
            scores.append(NEUTRAL if usage is None else 1.0 - usage)
        return scores
