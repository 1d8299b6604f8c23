"""running-requests-size-scorer: the fewer requests the engine runs, the better. PURE.

llm-d's ``(max - r) / (max - min)`` over the candidates, where r is the scraped number plus what was dispatched since
(`router.scheduling.load`). An endpoint whose number is unknown scores 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import least_is_best, running
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class RunningRequestsSizeScorer(Parameters, frozen=True):
    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return least_is_best(running(candidates))
