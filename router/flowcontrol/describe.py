"""Queues and accounts as JSON-ready values, for ``/debug/flow``. PURE."""

from __future__ import annotations

from typing import Any

from router.flowcontrol.classes import PriorityClass
from router.flowcontrol.lines import Line
from router.flowcontrol.queues import Queues

_MOST_TENANTS = 100


def describe(queues: Queues, now: float) -> dict[str, Any]:
    """Of each class the hundred tenants with most waiting."""
    return {
        "requests": queues.requests,
        "bytes": queues.nbytes,
        "dispatched_per_s": round(queues.drain.per_s(now), 2),
        "classes": [_class(known) for known in queues.classes()],
    }


def _class(known: PriorityClass) -> dict[str, Any]:
    lines = sorted(known.lines(), key=lambda line: -line.requests)[:_MOST_TENANTS]
    return {
        "priority": known.priority,
        "requests": known.requests,
        "bytes": known.nbytes,
        "tenants": [_tenant(line) for line in lines],
    }


def _tenant(line: Line) -> dict[str, Any]:
    account = line.account
    return {
        "tenant": account.tenant,
        "weight": account.weight,
        "requests": line.requests,
        "bytes": line.nbytes,
        "requests_at_other_routers": sum(line.elsewhere.values()),
        "deficit_tokens": round(account.deficit),
        "charged_tokens": round(account.served),
    }
