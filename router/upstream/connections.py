"""Connections to one endpoint URL: the idle ones kept for reuse, newest first, and all that are open.

Which connection serves next, which is kept and which has waited too long is decided here; `Relay` connects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set

from router.ports import UpstreamError
from router.upstream.connection import Connection
from router.wire.http_head import Origin


class Connections:
    """All connections of one origin; the `Owner` of each of them."""

    __slots__ = ("_clock", "_idle", "_max_idle", "connecting", "distrusted", "heard_at", "live", "origin")

    def __init__(self, origin: Origin, max_idle: int, clock: Callable[[], float]) -> None:
        self.origin = origin
        self.connecting = 0
        """Connections being made."""
        self.distrusted = False
        """The endpoint is not believed to answer: nothing waits for its first byte."""
        self.heard_at: float | None = None
        """Loop time of the last sweep that found new bytes; None: none did."""
        self.live: set[Connection] = set()
        """Open connections, idle or not; each leaves when its transport is gone."""
        self._clock = clock
        self._max_idle = max_idle
        self._idle: deque[Connection] = deque()

    def take(self) -> Connection | None:
        """The idle connection that was used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    def ready(self, connection: Connection) -> None:
        connection.idle_since = self._clock()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.popleft().abort()

    def lost(self, connection: Connection) -> None:
        self.live.discard(connection)
        if connection.heard:
            self.heard_at = self._clock()
        # An active connection is not in the deque, and an idle one that the engine closes is a rare event.
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float, idle_before: float, gone: Set[str] = frozenset()) -> None:
        """Closes what has been idle since before `idle_before` and breaks answers that are overdue at `now`, or that
        wait for what lay on one of the endpoints that are `gone`."""
        idle = self._idle
        while idle and idle[0].idle_since < idle_before:
            idle.popleft().abort()
        for connection in tuple(self.live):
            if connection.heard:
                connection.heard = False
                self.heard_at = now
            connection.sweep(now, distrusted=self.distrusted, gone=gone)

    def orphan(self, url: str) -> None:
        """What lay on the endpoint there is gone for good."""
        for connection in self.live:
            connection.orphan(url)

    def abort(self, error: UpstreamError) -> None:
        self._idle.clear()
        for connection in tuple(self.live):
            connection.fail(error)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def unused(self) -> bool:
        return not self.live and not self.connecting
