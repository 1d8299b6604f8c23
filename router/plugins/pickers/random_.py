"""random-picker: any order, whatever the scores; the baseline that needs no state. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class RandomPicker(Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, Meta(ge=1)] | None = None
    """How many to return, fallbacks included; None is all."""

    def pick(self, context: Context, candidates: Sequence[Candidate], _scores: Sequence[float]) -> Sequence[Candidate]:
        count = min(len(candidates), self.max_num_of_endpoints or len(candidates))
        return context.rng.sample(candidates, count)
