"""Least requests: where the router itself has the fewest in flight. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.plugins import Context


def least_requests(_context: Context, candidates: Sequence[Candidate]) -> list[float]:
    return [candidate.inflight.requests for candidate in candidates]
