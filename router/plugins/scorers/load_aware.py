"""load-aware-scorer: half a point for an empty queue, falling to nothing at a threshold. PURE.

llm-d's ``0.5 * (1 - waiting / threshold)``, 0 from the threshold on, where waiting is the scraped queue plus what was
dispatched since (`router.scheduling.load`). An unknown queue scores 0.25, the middle of the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import waiting
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

_BEST = 0.5


class LoadAwareScorer(Parameters, frozen=True):
    threshold: Annotated[float, Meta(gt=0)] = 128.0

    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        threshold = self.threshold
        return [
            _BEST / 2 if queued is None else max(0.0, _BEST * (1.0 - queued / threshold))
            for queued in waiting(candidates)
        ]
