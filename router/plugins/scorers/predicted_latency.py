"""predicted-latency-scorer: the least predicted cost, learnt engine by engine. PURE.

The cost is the predicted time to first token with the prompt's own work counted twice, and what the choice does to
others: answers under way, and prefixes it would evict (`router.scheduling.cost`). Candidates within `nearTie` of the
least are equal, so that the picker's rendezvous decides: cold prefixes spread, and routers agree without talking.

Where no engine model is kept, all engines are taken for slow and alike, and own in-flight counts stand for their work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.cost import Weights, ask, local
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

_SAME_S = 0.001
"""Closer than this no prediction is."""


class CostParameters(Parameters, frozen=True):
    """The weights of a cost, for every plugin that reckons with it."""

    own: Annotated[float, Meta(ge=0)] = 2.0
    interference: Annotated[float, Meta(ge=0)] = 0.05
    answer: Annotated[float, Meta(ge=0)] = 0.1
    memory: Annotated[float, Meta(ge=0)] = 1.0
    eviction: Annotated[float, Meta(ge=0)] = 0.5
    eviction_horizon_s: Annotated[float, Meta(gt=0)] = 120.0
    slo: Annotated[float, Meta(ge=0)] = 4.0

    def weights(self) -> Weights:
        return Weights(
            own=self.own,
            interference=self.interference,
            answer=self.answer,
            memory=self.memory,
            eviction=self.eviction,
            horizon_s=self.eviction_horizon_s,
            slo=self.slo,
        )


class PredictedLatencyScorer(CostParameters, frozen=True):
    near_tie: Annotated[float, Meta(ge=0, le=1)] = 0.03

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """Least cost over cost; 1 for all that are near the least."""
        weights, now = self.weights(), context.now
        what = ask(context.request, context.prompt, context.leg, candidates[0].estimate)
        costs = [local(what, candidate, weights, now).total for candidate in candidates]
        same = min(costs) * (1.0 + self.near_tie) + _SAME_S
        return [1.0 if cost <= same else same / cost for cost in costs]
