"""What the pool learns of endpoints' lives, told to the relay, where requests wait for endpoints."""

from __future__ import annotations

from typing import Protocol

from router.core import Endpoint
from router.pool.observers import PoolObserver


class Waits(Protocol):
    """What `router.upstream.relay` does about it."""

    def distrust(self, url: str) -> None: ...

    def trust(self, url: str) -> None: ...

    def forsake(self, url: str) -> None: ...


class Distrust(PoolObserver):
    """Nobody waits for an endpoint that does not answer, nor for KV on one that has lost it. Who waits is woken."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def trust_changed(self, url: str, trusted: bool) -> None:
        (self._waits.trust if trusted else self._waits.distrust)(url)

    def restarted(self, endpoint: Endpoint) -> None:
        self._waits.forsake(endpoint.url)

    def removed(self, endpoint: Endpoint) -> None:
        # Nobody probes it any more, so its end would not be noticed.
        self._waits.forsake(endpoint.url)
