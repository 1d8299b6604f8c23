"""What goes to the planning process and comes back. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from router.capacity.plan import Plan, PoolView

HEAD_BYTES = 4
"""Length of a message, big endian, before it."""


class Asked(msgspec.Struct, frozen=True):
    number: int
    now: float
    views: Sequence[PoolView]
    quotas: Mapping[str, int]


class Said(msgspec.Struct, frozen=True):
    number: int
    plans: Sequence[Plan]
    took_s: float


def framed(message: Asked | Said) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body
