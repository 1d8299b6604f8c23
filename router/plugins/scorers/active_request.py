"""active-request-scorer: the fewer requests an endpoint has, compared with the busiest, the better. PURE.

1 up to `idleThreshold` requests; above it ``maxBusyScore * (most - n) / most``, as llm-d. n is our own in-flight count
and what the scrape saw beyond it (`router.scheduling.load`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import loads
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class ActiveRequestScorer(Parameters, frozen=True):
    idle_threshold: Annotated[int, Meta(ge=0)] = 0
    max_busy_score: Annotated[float, Meta(ge=0, le=1)] = 1.0

    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        active = loads(candidates)
        idle = self.idle_threshold
        most = max(active, default=0.0)
        if most <= idle:
            return [1.0] * len(active)
        scale = self.max_busy_score / most
        return [1.0 if n <= idle else (most - n) * scale for n in active]
