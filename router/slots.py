"""What this process has in use and what it keeps, for ``/debug/slots``: every count that must be zero once nothing is
asked of the router, and the sizes of what it remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from router.inflight import InflightTracker
from router.observability.supervisor import Supervisor

Count = Callable[[], int]


class Slots:
    """`in_use`: counts that are zero at rest; `kept`: sizes that are bounded and need not be."""

    def __init__(
        self, inflight: InflightTracker, supervisor: Supervisor, in_use: Mapping[str, Count], kept: Mapping[str, Count]
    ) -> None:
        self._inflight = inflight
        self._supervisor = supervisor
        self._in_use = in_use
        self._kept = kept

    def describe(self) -> dict[str, Any]:
        """JSON-ready. ``at_rest``: every lease is returned and every count of ``in_use`` is zero."""
        leases = {
            name: {"requests": held.requests, "prefill_tokens": held.prefill_tokens, "tokens": held.tokens}
            for name, held in self._inflight.snapshot().items()
        }
        in_use = {name: count() for name, count in self._in_use.items()}
        reports = self._supervisor.reports()
        return {
            "at_rest": not leases and not any(in_use.values()),
            "in_use": in_use,
            "leases": leases,
            "kept": {name: count() for name, count in self._kept.items()},
            "tasks": [
                {"name": task.name, "running": task.running, "failures": task.failures, "last_error": task.last_error}
                for task in reports
            ],
            "asyncio_tasks": len(asyncio.all_tasks()),
        }
