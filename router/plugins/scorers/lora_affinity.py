"""lora-affinity-scorer: endpoints where the requested adapter already works. PURE.

llm-d's tiers: 1 where requests with the adapter run, 0.8 where there is room for another adapter, 0.6 where requests
with it wait, else 0. An endpoint whose adapters are unknown scores 0.5, and so does everyone when the model is known
not to be an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import NEUTRAL
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class LoraAffinityScorer(Parameters, frozen=True):
    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        model = context.request.model
        if model is None:
            return [NEUTRAL] * len(candidates)
        return [_score(model, candidate) for candidate in candidates]


def _score(model: str, candidate: Candidate) -> float:
    card = candidate.state.models.get(model)
    metrics = candidate.state.metrics
    if metrics is None or metrics.max_loras is None or (card is not None and card.parent is None):
        return NEUTRAL
    if model in metrics.running_loras:
        return 1.0
    if len(metrics.running_loras | metrics.waiting_loras) < metrics.max_loras:
        return 0.8
    return 0.6 if model in metrics.waiting_loras else 0.0
