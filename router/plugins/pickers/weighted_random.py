"""weighted-random-picker: chance in proportion to the score. PURE.

A-Res sampling (Efraimidis and Spirakis 2006): each candidate draws u^(1/score), the highest draw is first; so the
whole order, fallbacks included, is a weighted sample without replacement. Those that score 0 come last, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class WeightedRandomPicker(Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, Meta(ge=1)] | None = None
    """How many to return, fallbacks included; None is all."""

    def pick(self, context: Context, candidates: Sequence[Candidate], scores: Sequence[float]) -> Sequence[Candidate]:
        draw = context.rng.random
        # log(u) / score orders like u^(1/score) and does not underflow; 1 - u is never 0.
        keys = [(1, log(1.0 - draw()) / score) if score > 0.0 else (0, draw()) for score in scores]
        order = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        return [candidates[i] for i in order[: self.max_num_of_endpoints]]
