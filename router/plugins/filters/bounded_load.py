"""bounded-load-filter: endpoints whose load is not far above the average. PURE.

An endpoint may take another request while it has at most ``factor * mean + slack`` requests, the mean taken over the
candidates with this request counted in: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam
2018), with prefix affinity in the place of the hash. However strong the scorers' preference, an endpoint then never
draws more than its bounded share: one shared system prompt cannot collapse a pool onto one endpoint. The endpoint
with the least load always passes, so it never leaves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import loads
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class BoundedLoadFilter(Parameters, frozen=True):
    preference: ClassVar[bool] = True

    factor: Annotated[float, Meta(ge=1)] = 1.25
    slack: Annotated[float, Meta(ge=0)] = 3.0
    """Requests let through above the bound, so that small numbers do not break affinity."""

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        active = loads(candidates)
        # The counts are those before this request is dispatched: with it the endpoint has one more.
        bound = self.factor * (sum(active) + 1.0) / len(active) + self.slack - 1.0
        bound = max(bound, min(active))
        if max(active) <= bound:
            return candidates
        return [candidate for candidate, load in zip(candidates, active, strict=True) if load <= bound]
