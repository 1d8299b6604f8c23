"""by-label: endpoints whose value of one label is in a list. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class ByLabel(Parameters, frozen=True):
    label: Annotated[str, Meta(min_length=1)]
    valid_values: frozenset[str] = frozenset()
    allows_no_label: bool = False
    """Keep endpoints that do not have the label."""

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if self._keeps(candidate.state.endpoint.labels.get(self.label))]

    def _keeps(self, value: str | None) -> bool:
        return self.allows_no_label if value is None else value in self.valid_values
