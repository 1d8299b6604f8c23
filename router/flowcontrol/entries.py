"""What waits: a request reduced to what its turn depends on, and heaps of such. PURE."""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import NamedTuple

from router.flowcontrol.charges import Charge


class Lane(NamedTuple):
    """Requests that the same endpoints could take: when one of them frees, any request of the lane may go."""

    model: str
    splits: bool = False
    """It is prefilled on one endpoint and decoded on another, so it needs room on one of each."""


class Fate(StrEnum):
    """Where a request stands; it gets exactly one of the last four, once."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    EVICTED = "evicted"
    """Put out for a request that may rather wait."""
    EXPIRED = "expired"
    LEFT = "left"
    """Its client went away."""


class Entry:
    """One waiting request. Compared by identity; only `Queues` changes it."""

    __slots__ = (
        "bypassed",
        "charge",
        "cost",
        "due",
        "enqueued_at",
        "expires_at",
        "fate",
        "lane",
        "nbytes",
        "number",
        "prefers",
        "priority",
        "tenant",
    )

    def __init__(
        self,
        *,
        tenant: str,
        priority: int,
        lane: Lane,
        cost: float,
        nbytes: int,
        enqueued_at: float,
        expires_at: float,
        due: float,
        prefers: tuple[str, ...] = (),
    ) -> None:
        """`cost`: tokens it is expected to be served; `due`: when its first token should be there, for EDF;
        `prefers`: endpoints that hold its prefix, none where it does not matter. Times in seconds of one clock."""
        self.tenant = tenant
        self.priority = priority
        self.lane = lane
        self.cost = cost
        self.nbytes = nbytes
        self.enqueued_at = enqueued_at
        self.expires_at = expires_at
        self.due = due
        self.prefers = prefers
        self.fate = Fate.QUEUED
        self.number = 0
        """Order of arrival, given by the queues."""
        self.bypassed = 0
        """How many of its tenant went before it because their prefix lay where there was room."""
        self.charge: Charge | None = None
        """What its tenant was charged, once it is dispatched."""


_SLACK = 64


class Heap:
    """Entries by a key, least first. Those that have gone are dropped when met, or when they outnumber the rest."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Entry]] = []

    def push(self, key: float, entry: Entry, alive: int) -> None:
        """`alive`: at most so many entries in here still wait."""
        entries = self._entries
        if len(entries) > 2 * alive + _SLACK:
            entries[:] = [item for item in entries if item[2].fate is Fate.QUEUED]
            heapq.heapify(entries)
        heapq.heappush(entries, (key, entry.number, entry))

    def head(self) -> Entry | None:
        """The first that still waits."""
        entries = self._entries
        while entries and entries[0][2].fate is not Fate.QUEUED:
            heapq.heappop(entries)
        return entries[0][2] if entries else None
