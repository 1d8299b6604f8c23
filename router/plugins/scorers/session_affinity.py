"""session-affinity-scorer: the session's endpoint scores 1, the others 0. PURE.

The endpoint is the rendezvous winner for the session id among the candidates: no table, no TTL, the same answer in
every router, and only the sessions of an endpoint that leaves move. Without a session all score 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context
from router.scheduling.rendezvous import session_key, winner
from router.scheduling.session import session_id


class SessionAffinityScorer(Parameters, frozen=True):
    header_name: str | None = None
    """Read only this header; None reads `router.scheduling.session.SESSION_HEADERS`."""

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        scores = [0.0] * len(candidates)
        session = session_id(context, self.header_name)
        if session is not None and candidates:
            scores[winner(session_key(session), candidates)] = 1.0
        return scores
