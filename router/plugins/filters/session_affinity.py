"""session-affinity-filter: all requests of a session to the same endpoint, as a rule. PURE.

The endpoint is the rendezvous winner for the session id among the candidates that came this far: no table, no TTL,
the same answer in every router, and only the sessions of an endpoint that leaves move. A request without a session
passes unfiltered. For a preference instead of a rule use session-affinity-scorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context
from router.scheduling.rendezvous import session_key, winner
from router.scheduling.session import session_id


class SessionAffinityFilter(Parameters, frozen=True):
    preference: ClassVar[bool] = True

    header_name: str | None = None
    """Read only this header; None reads `router.scheduling.session.SESSION_HEADERS`."""

    def filter(self, context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        session = session_id(context, self.header_name)
        return candidates if session is None else [candidates[winner(session_key(session), candidates)]]
