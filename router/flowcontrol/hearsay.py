"""Hearsay: what other routers tell of their queues, taken over into this one's, and room that is left to them. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.flowcontrol.queues import Queues
from router.flowcontrol.rivals import Rivals

Notes = Mapping[str, bytes]
"""What other routers last told, by router; a new mapping after each change."""

_POLITE_S = 0.06
"""How long room is left to a request that waits at another router: three rounds of their exchange."""

_NOTHING: Notes = {}


def nothing_told() -> Notes:
    """Where there are no others."""
    return _NOTHING


class Hearsay:
    def __init__(self, queues: Queues, notes: Callable[[], Notes]) -> None:
        self._queues = queues
        self._notes = notes
        self._read = _NOTHING
        self._rivals = Rivals()
        self.others_wait = False
        """Something waits at another router."""

    def listen(self, now: float) -> None:
        """Takes over what is new."""
        notes = self._notes()
        if notes is self._read:
            return
        self._read = notes
        heard = self._rivals.hear(notes)
        self._queues.heard(heard.backlog, now)
        for priority, tenant, tokens in heard.served:
            self._queues.charged_elsewhere(priority, tenant, tokens)
        self.others_wait = bool(heard.backlog)


class Courtesy:
    """Room is left to a request that is more entitled at another router, for a while."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def shown(self, now: float) -> bool:
        """Room is to be left once more. Whether it was left for long enough."""
        if self._since is None:
            self._since = now
        return now - self._since >= _POLITE_S

    def over(self) -> None:
        """There is nobody to leave it to."""
        self._since = None
