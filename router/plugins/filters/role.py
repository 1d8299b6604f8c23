"""prefill-filter and decode-filter: endpoints by role. PURE.

An endpoint without a role is one of role both: decode-filter keeps it, as llm-d's keeps unlabelled pods. The scheduler
itself never lets a prefill endpoint decode; these filters exist so that a configuration can say it, and narrow either
leg to what it names.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate, Role
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

# An enum member costs a descriptor call each time it is looked up on its class, once for each candidate.
_PREFILL, _DECODE = Role.PREFILL, Role.DECODE


class PrefillFilter(Parameters, frozen=True):
    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if candidate.state.endpoint.role is not _DECODE]


class DecodeFilter(Parameters, frozen=True):
    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if candidate.state.endpoint.role is not _PREFILL]
