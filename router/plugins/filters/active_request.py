"""active-request-filter: endpoints with at most so many requests. PURE.

The count is our own in-flight and what the scrape saw beyond it (`router.scheduling.load`). When it leaves nobody the
client gets 429, unless `fallbackOnEmpty`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import loads
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class ActiveRequestFilter(Parameters, frozen=True):
    saturation: ClassVar[bool] = True

    max_requests: Annotated[int, Meta(gt=0)]
    """An endpoint may have this many and still get another."""
    fallback_on_empty: bool = False

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        kept = [
            candidate
            for candidate, load in zip(candidates, loads(candidates), strict=True)
            if load <= self.max_requests
        ]
        return candidates if self.fallback_on_empty and not kept else kept
