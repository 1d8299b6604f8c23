"""Whether one more endpoint may be taken out on the word of requests, or for standing still. PURE.

Failing requests may have a cause that is no endpoint's own (a poisoned prompt, the network on this side), and taking
out everybody they meet would end the service where it only limps. So at most `share` of an endpoint's peers, itself
counted, are out for such reasons at one time, but one always may be, and never the last that still serves. Peers are
those that can stand in for it: of the same role or of both, for a model that it serves. The last prefill endpoint may
go while anybody decodes, for whoever decodes can prefill by itself. Probes are believed without a bound: an engine that
does not answer its health check answers no request either.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core import Health, Role
from router.pool.record import UpstreamRecord


def may_eject(record: UpstreamRecord, others: Iterable[UpstreamRecord], share: float) -> bool:
    """`others`: all of the pool but `record`; `share`: 0..1."""
    same = [other for other in others if _serve_the_same(record, other)]
    peers = [other for other in same if _roles_alike(record, other)]
    out = sum(other.ejected for other in peers)
    able = same if record.spec.role is Role.PREFILL else peers
    serving = any(other.health is Health.HEALTHY for other in able)
    return serving and out + 1 <= max(1, int(share * (len(peers) + 1)))


def _roles_alike(one: UpstreamRecord, other: UpstreamRecord) -> bool:
    roles = (one.spec.role, other.spec.role)
    return roles[0] is roles[1] or Role.BOTH in roles


def _serve_the_same(one: UpstreamRecord, other: UpstreamRecord) -> bool:
    served = (one.served(), other.served())
    return not all(served) or any(model in served[1] for model in served[0])
