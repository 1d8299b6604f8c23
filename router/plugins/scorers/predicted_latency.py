"""predicted-latency-scorer: the least predicted cost, learnt engine by engine. PURE.

The cost is the predicted time to first token, the prompt's own work counted one and a half times, and what the choice
does to others: answers under way, and prefixes it would evict (`router.scheduling.cost`). Candidates that cost no more
than the least and `nearTie` of its time to first token are equal, so that the picker's rendezvous decides: cold
prefixes spread, and routers agree without talking.

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

    own: Annotated[float, Meta(ge=0)] = 1.5
    interference: Annotated[float, Meta(ge=0)] = 0.1
    answer: Annotated[float, Meta(ge=0)] = 0.5
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
        found = [local(what, candidate, weights, now) for candidate in candidates]
        costs = [terms.total for terms in found]
        least = min(costs)
        # A share of the first token's time, not of the cost: the answer is most of that, and alike everywhere.
        same = least + self.near_tie * found[costs.index(least)].ttft + _SAME_S
        return [1.0 if cost <= same else same / cost for cost in costs]
