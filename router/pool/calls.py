"""ControlCalls: the control requests that the pool makes of an engine, as a port."""

from __future__ import annotations

from typing import Protocol

from router.core import Endpoint


class CallError(Exception):
    """A control request brought no usable answer."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        """`reason`: a few words from a bounded set (a log word and a metric label), nothing of the engine's body."""
        super().__init__(reason)
        self.reason = reason
        self.status = status
        """The engine's status, when it answered with another than 2xx."""

    @property
    def absent(self) -> bool:
        """The engine answered that it has no such path, or not for us."""
        return self.status in (403, 404, 405, 501)


class ControlCalls(Protocol):
    async def get_text(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> str:
        """``GET <endpoint.url><path>`` with the endpoint's key as bearer; the body of a 2xx answer, of bounded size.

        Raises `CallError` for everything else, at the latest after `timeout_s`.
        """
        ...
