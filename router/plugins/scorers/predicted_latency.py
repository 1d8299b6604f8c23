"""predicted-latency-scorer: the least predicted cost, learnt engine by engine. PURE.

The cost is the predicted time to first token and what the choice does to others: those who come later, answers under
way, and prefixes it would evict (`router.scheduling.cost`). Candidates that cost no more
than the least and `nearTie` of its time to first token are equal, so that the picker's rendezvous decides: cold
prefixes spread, and routers agree without talking.

Where no engine model is kept, all engines are taken for slow and alike, and own in-flight counts stand for their work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.cost import Weights, ask, costs, local
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

_SAME_S = 0.001
"""Closer than this no prediction is."""


class CostParameters(Parameters, frozen=True, dict=True):
    """The weights of a cost, for every plugin that reckons with it."""

    own: Annotated[float, Meta(ge=0)] = 1.0
    reuse: Annotated[float, Meta(ge=0, le=1)] = 1.0
    delay: Annotated[float, Meta(ge=0)] = 1.0
    interference: Annotated[float, Meta(ge=0)] = 0.02
    answer: Annotated[float, Meta(ge=0)] = 0.3
    memory: Annotated[float, Meta(ge=0)] = 1.0
    eviction: Annotated[float, Meta(ge=0)] = 1.0
    slo: Annotated[float, Meta(ge=0)] = 4.0

    @cached_property
    def weights(self) -> Weights:
        return Weights(
            own=self.own,
            reuse=self.reuse,
            delay=self.delay,
            interference=self.interference,
            answer=self.answer,
            memory=self.memory,
            eviction=self.eviction,
            slo=self.slo,
        )


class PredictedLatencyScorer(CostParameters, frozen=True):
    near_tie: Annotated[float, Meta(ge=0, le=1)] = 0.03

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """Least cost over cost; 1 for all that are near the least."""
        weights, now = self.weights, context.now
        what = ask(context.request, context.prompt, context.leg, candidates)
        found = costs(what, candidates, weights, now)
        least = min(found)
        # A share of the first token's time, not of the cost: what a choice does to others is in that too.
        best = local(what, candidates[found.index(least)], weights, now)
        same = least + self.near_tie * best.ttft + _SAME_S
        return [1.0 if cost <= same else same / cost for cost in found]
