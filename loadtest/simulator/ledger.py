"""Ledger: what was sent for each request, so that a test can compare it with what a client got. Bounded. PURE."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any


class Entry:
    """One answer: the digest of its body bytes so far, and how it ended. Times are seconds since the epoch."""

    __slots__ = (
        "aborted",
        "aborted_at",
        "bytes_sent",
        "chunks",
        "cut",
        "done",
        "hasher",
        "path",
        "request_id",
        "started_at",
        "status",
    )

    def __init__(self, request_id: str, path: str, started_at: float) -> None:
        self.request_id = request_id
        self.path = path
        self.started_at = started_at
        self.status: int | None = None
        self.chunks = 0
        self.bytes_sent = 0
        self.done = False
        self.cut = False
        """A fault closed the connection before the end."""
        self.aborted = False
        self.aborted_at: float | None = None
        self.hasher = hashlib.sha256()

    def sent(self, body: bytes) -> None:
        self.hasher.update(body)
        self.chunks += 1
        self.bytes_sent += len(body)

    def abort(self, now: float) -> None:
        """The client left before the end."""
        if not self.done and not self.aborted:
            self.aborted = True
            self.aborted_at = now

    def view(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "path": self.path,
            "status": self.status,
            "sha256": self.hasher.hexdigest(),
            "bytes": self.bytes_sent,
            "chunks": self.chunks,
            "done": self.done,
            "cut": self.cut,
            "aborted": self.aborted,
            "aborted_at": self.aborted_at,
            "started_at": self.started_at,
        }


class Ledger:
    """The last `capacity` answers, oldest first.

    One request id may have several (retries, the two legs of a hand-off).
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._by_id: dict[str, list[int]] = {}
        self._next = 0

    def open(self, request_id: str, path: str, now: float) -> Entry:
        entry = Entry(request_id, path, now)
        self._entries[self._next] = entry
        self._by_id.setdefault(request_id, []).append(self._next)
        self._next += 1
        if len(self._entries) > self._capacity:
            number, old = self._entries.popitem(last=False)
            numbers = self._by_id[old.request_id]
            numbers.remove(number)
            if not numbers:
                del self._by_id[old.request_id]
        return entry

    def find(self, request_id: str) -> list[Entry]:
        return [self._entries[number] for number in self._by_id.get(request_id, [])]

    def recent(self, count: int) -> list[Entry]:
        """The newest first."""
        return list(self._entries.values())[: -count - 1 : -1]
