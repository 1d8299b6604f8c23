"""Whether one more endpoint may be taken out on the word of requests, or for standing still. PURE.

Failing requests may have a cause that is no endpoint's own (a poisoned prompt, the network on this side), and taking
out everybody they meet would end the service where it only limps. So at most `share` of an endpoint's peers, itself
counted, are out for such reasons at one time, but one always may be, and never the last that still serves. Peers are
those that can stand in for it: of the same role or of both, for a model that it serves. Probes are believed without a
bound: an engine that does not answer its health check answers no request either.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core import Health, Role
from router.pool.record import UpstreamRecord


def may_eject(record: UpstreamRecord, others: Iterable[UpstreamRecord], share: float) -> bool:
    """`others`: all of the pool but `record`; `share`: 0..1."""
    peers = [other for other in others if _peers(record, other)]
    out = sum(other.ejected for other in peers)
    serving = sum(other.health is Health.HEALTHY for other in peers)
    return serving > 0 and out + 1 <= max(1, int(share * (len(peers) + 1)))


def _peers(one: UpstreamRecord, other: UpstreamRecord) -> bool:
    roles = (one.spec.role, other.spec.role)
    if roles[0] is not roles[1] and Role.BOTH not in roles:
        return False
    served = (one.served(), other.served())
    return not all(served) or any(model in served[1] for model in served[0])
