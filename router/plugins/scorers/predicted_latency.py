"""predicted-latency-scorer: the least predicted cost first. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate, Leg
from router.scheduling.cost import Weights, terms
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class PredictedLatencyScorer(Parameters, frozen=True):
    own_weight: Annotated[float, Meta(ge=0)] = 2.0
    interference: Annotated[float, Meta(ge=0)] = 0.05
    answer: Annotated[float, Meta(ge=0)] = 0.0
    memory: Annotated[float, Meta(ge=0)] = 1.0
    eviction: Annotated[float, Meta(ge=0)] = 1.0
    eviction_horizon_s: Annotated[float, Meta(gt=0)] = 120.0
    waste: Annotated[float, Meta(ge=0)] = 0.0
    waste_backlog: Annotated[float, Meta(ge=0)] = 0.0
    near_tie: Annotated[float, Meta(ge=0, le=1)] = 0.03

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        weights = Weights(
            own=self.own_weight,
            interference=self.interference,
            answer=self.answer,
            memory=self.memory,
            eviction=self.eviction,
            eviction_horizon_s=self.eviction_horizon_s,
            waste=self.waste,
            waste_backlog=self.waste_backlog,
        )
        estimate = candidates[0].estimate
        expected = 256.0 if estimate is None else estimate.output_tokens
        output = 1.0 if context.leg is Leg.PREFILL else min(context.request.max_tokens or expected, expected)
        costs = [t.total for t in terms(context.prompt, candidates, weights, context.now, output)]
        least = min(costs)
        same = least * (1.0 + self.near_tie) + 0.001
        return [1.0 if cost <= same else same / cost for cost in costs]
