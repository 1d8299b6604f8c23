"""Session affinity: a session stays where its first turn went, which is where the fewest requests were. PURE.

Remembers every session of a replay; requests without one go where the fewest requests are.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.plugins import Context
from router.scheduling.session import session_id

_ELSEWHERE = 1_000_000.0


class SessionAffinity:
    def __init__(self) -> None:
        self._home: dict[str, str] = {}

    def __call__(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        costs = [float(candidate.inflight.requests) for candidate in candidates]
        session = session_id(context)
        if session is None:
            return costs
        home = self._home.get(session)
        if home is None or all(candidate.id != home for candidate in candidates):
            least = min(costs)
            place = context.rng.choice([i for i, cost in enumerate(costs) if cost == least])
            self._home[session] = home = candidates[place].id
        return [cost + (_ELSEWHERE if c.id != home else 0.0) for c, cost in zip(candidates, costs, strict=True)]
