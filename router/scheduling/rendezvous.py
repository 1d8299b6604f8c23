"""Rendezvous hashing of endpoints: everybody who knows the key and the ids agrees on the order, without state. PURE.

An endpoint that joins or leaves moves only the keys it wins or held (highest random weight, Thaler and Ravishankar
1998). The hash is xxh3, the same in every process and on every machine, unlike Python's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from router.core import Candidate

_SEED = (1 << 64) - 1


def session_key(session: str) -> int:
    """A 64-bit key of the whole session id."""
    return xxh3_64_intdigest(session.encode())


def weight(key: int, endpoint_id: str) -> int:
    """64-bit weight of the endpoint for the key; the highest wins."""
    return xxh3_64_intdigest(endpoint_id.encode(), key & _SEED)


def winner(key: int, candidates: Sequence[Candidate]) -> int:
    """Index of the candidate that owns `key`. `candidates` must not be empty."""
    weights = [weight(key, candidate.state.endpoint.id) for candidate in candidates]
    return weights.index(max(weights))
