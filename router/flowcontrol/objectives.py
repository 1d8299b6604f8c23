"""Objectives: what a request is entitled to, by who sent it and what for. PURE."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from router.core import Caller
from router.wire.deadline import allowed_s, queue_ttl_s

MOST_PRIORITY = 100
"""Priorities are held within plus and minus this, so that clients cannot make classes without end."""

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    priority: int = 0
    ttft_slo_s: float | None = None
    max_wait_s: float | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is entitled to. Times in seconds of the caller's clock."""

    priority: int
    due: float
    """When its first token should be there."""
    expires_at: float
    """When it has waited for too long."""
    max_wait_s: float


class Objectives:
    def __init__(
        self,
        named: Mapping[str, Objective],
        *,
        max_wait_s: float,
        class_wait_s: Mapping[int, float] | None = None,
    ) -> None:
        """`class_wait_s`: priority -> longest wait, in place of `max_wait_s`."""
        self._named = named
        self._max_wait_s = max_wait_s
        self._class_wait_s = class_wait_s or {}

    def priority(self, caller: Caller) -> int:
        """The class: its objective's, else the one asked for, else 0."""
        if caller.objective is not None and (objective := self._named.get(caller.objective)) is not None:
            return objective.priority
        if caller.priority is None:
            return 0
        return max(-MOST_PRIORITY, min(caller.priority, MOST_PRIORITY))

    def standing(self, caller: Caller, headers: Mapping[str, str], now: float) -> Standing:
        """`headers` are the routing headers that this client may send. An objective that is not configured says
        nothing, and a time to live (`router.wire.deadline.QUEUE_TTL`) only shortens the wait."""
        objective = self._named.get(caller.objective) if caller.objective is not None else None
        priority = self.priority(caller)
        slo_s = _asked_slo_s(headers)
        wait_s = self._class_wait_s.get(priority, self._max_wait_s)
        if objective is not None:
            slo_s = objective.ttft_slo_s if slo_s is None else slo_s
            wait_s = wait_s if objective.max_wait_s is None else objective.max_wait_s
        ttl_s = queue_ttl_s(headers) if headers else None
        if ttl_s is not None:
            wait_s = min(wait_s, ttl_s)
        whole_s = allowed_s(headers) if headers else None
        due_s = wait_s if slo_s is None else slo_s
        return Standing(
            priority=priority,
            due=now + (due_s if whole_s is None else min(due_s, whole_s)),
            expires_at=now + wait_s,
            max_wait_s=wait_s,
        )


def _asked_slo_s(headers: Mapping[str, str]) -> float | None:
    for name in TTFT_HEADERS:
        value = headers.get(name)
        if value is not None:
            try:
                milliseconds = float(value)
            except ValueError:
                continue
            if 0.0 < milliseconds < 1e9:
                return milliseconds / 1000
    return None
