"""Power of two choices: of two at random the one with fewer requests (Mitzenmacher 2001). PURE."""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.plugins import Context

_REST = 1_000_000.0


def power_of_two(context: Context, candidates: Sequence[Candidate]) -> list[float]:
    drawn = set(context.rng.sample(range(len(candidates)), min(2, len(candidates))))
    return [c.inflight.requests + (0.0 if i in drawn else _REST) for i, c in enumerate(candidates)]
