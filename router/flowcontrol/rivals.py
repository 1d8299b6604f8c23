"""Rivals: what routers over the same engines tell each other of their queues. PURE.

Each tells what waits at it by tenant, and how much it has served each; so all of them give turns by the same accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from router.flowcontrol.entries import Lane
from router.flowcontrol.queues import Backlog, Queues

_MOST_TENANTS = 64
_RECENT_S = 10.0


class _Tenant(msgspec.Struct, frozen=True, array_like=True):
    priority: int
    tenant: str
    opened_at: float
    """Tells a new account from a corrected one."""
    served: float
    waiting: list[tuple[str, bool, int]]
    """Model, whether it splits, requests."""


_DECODER = msgspec.msgpack.Decoder(list[_Tenant])


def told(queues: Queues, now: float) -> bytes:
    """What this router tells; empty when there is nothing to tell. The tenants with most waiting, at most 64."""
    lines = [
        (line.requests, priority_class.priority, line)
        for priority_class in queues.classes()
        for line in priority_class.lines()
        if line.requests or now - line.idle_since < _RECENT_S
    ]
    if not lines:
        return b""
    lines.sort(key=lambda item: -item[0])
    return msgspec.msgpack.encode(
        [
            _Tenant(
                priority,
                line.account.tenant,
                line.account.opened_at,
                line.account.served,
                [(lane.model, lane.splits, count) for lane, count in line.lanes().items()],
            )
            for _, priority, line in lines[:_MOST_TENANTS]
        ]
    )


class Heard(NamedTuple):
    backlog: Backlog
    """What waits at all others."""
    served: list[tuple[int, str, float]]
    """(priority, tenant, tokens) served since the last time."""


class Rivals:
    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[int, str], tuple[float, float]]] = {}
        """Router -> (priority, tenant) -> when its account was opened, and what was served of it."""

    def hear(self, notes: Mapping[str, bytes]) -> Heard:
        """`notes`: what each other router told last, by router. One that cannot be read counts as empty."""
        backlog: dict[tuple[int, str], dict[Lane, int]] = {}
        served: list[tuple[int, str, float]] = []
        known: dict[str, dict[tuple[int, str], tuple[float, float]]] = {}
        for router, packed in notes.items():
            before = self._known.get(router, {})
            now = known[router] = {}
            for tenant in _read(packed):
                key = (tenant.priority, tenant.tenant)
                now[key] = (tenant.opened_at, tenant.served)
                opened_at, then = before.get(key, (tenant.opened_at, tenant.served))
                more = tenant.served - then if opened_at == tenant.opened_at else tenant.served
                if more:
                    served.append((*key, more))
                for model, splits, count in tenant.waiting:
                    lanes = backlog.setdefault(key, {})
                    lane = Lane(model, splits)
                    lanes[lane] = lanes.get(lane, 0) + count
        self._known = known
        return Heard(backlog, served)


def _read(packed: bytes) -> list[_Tenant]:
    try:
        return _DECODER.decode(packed)
    except msgspec.DecodeError:
        return []
