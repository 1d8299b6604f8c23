"""What may wait, and by which rule turns are given. Replaced whole when the configuration changes. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from router.flowcontrol.entries import Entry


class Limits(msgspec.Struct, frozen=True):
    requests: int
    nbytes: int


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    total: Limits
    each_class: Limits
    classes: Mapping[int, Limits] = {}
    """Priority -> its own limits in place of `each_class`."""
    sheddable_share: float = 0.5
    """Part of the total that requests of negative priority may fill."""

    def of(self, priority: int) -> Limits:
        return self.classes.get(priority, self.each_class)


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it is within a class."""

    quantum: float = 256.0
    """Tokens that a round gives to a tenant of weight 1."""
    ordering: Literal["fcfs", "edf"] = "fcfs"
    weights: Mapping[str, float] = {}
    """Of tenants; 1 for others."""

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)

    @property
    def by_arrival(self) -> bool:
        return self.ordering == "fcfs"

    def key(self, entry: Entry) -> float:
        """What orders a tenant's requests; those with the same key go by arrival."""
        return 0.0 if self.ordering == "fcfs" else entry.due
