"""The times that a request sets itself: each readable and each said once, or it is the client's mistake. PURE.

What a client sets and the router would pass over in silence, it would take for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.errors import InvalidRequest
from router.wire.deadline import DEADLINE, EXPECTED, QUEUE_TTL, allowed_s, queue_ttl_s

_OWN = (DEADLINE, QUEUE_TTL)


def time_allowed_s(raw: Iterable[tuple[bytes, bytes]], said: Mapping[str, str]) -> float | None:
    """Seconds for the whole request; None: no bound. `raw`: its header fields; `said`: those that steer, by name.

    Raises `InvalidRequest` for a deadline or a time to live that is none, or that is given twice in different ways. Of
    what proxies say the least counts, and what cannot be read of it is none.
    """
    for name in _OWN:
        if name in said and len(set(_values(raw, name))) > 1:
            raise InvalidRequest(f"{name} is given more than once, with different values: send one.", param=name)
    if QUEUE_TTL in said and queue_ttl_s(said) is None:
        raise InvalidRequest(f"{QUEUE_TTL} must be a duration above 0, like 2s, 1m30s or 250ms.", param=QUEUE_TTL)
    bounds = [allowed_s(said)]
    if EXPECTED in said:
        bounds += [allowed_s({EXPECTED: value}) for value in _values(raw, EXPECTED)]
    return min((bound for bound in bounds if bound is not None), default=None)


def _values(raw: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin-1") for field, value in raw if field == wanted]
