"""queue-scorer: the shorter the engine's waiting queue, the better. PURE.

llm-d's ``(max - q) / (max - min)`` over the candidates, where q is the scraped queue plus what was dispatched since
(`router.scheduling.load`). An endpoint whose queue is unknown scores 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import least_is_best, waiting
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class QueueScorer(Parameters, frozen=True):
    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return least_is_best(waiting(candidates))
