"""Admission: how many requests the router works on at once. PURE.

A bound and an immediate 429: past it, one more request would only wait where nobody sees it.
"""

from __future__ import annotations

from types import TracebackType

from router.errors import Overloaded


class Admission:
    """Counts requests from their body's end to their response's end."""

    __slots__ = ("active", "limit", "refused")

    def __init__(self, limit: int) -> None:
        """`limit`: concurrent requests; must be positive. May be replaced at run time."""
        self.limit = limit
        self.active = 0
        self.refused = 0

    def __enter__(self) -> None:
        """Raises `Overloaded` at the limit."""
        if self.active >= self.limit:
            self.refused += 1
            raise Overloaded(
                f"The router already serves {self.limit} requests (server.max_concurrent_requests); try again later.",
                retry_after_s=1,
            )
        self.active += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.active -= 1
