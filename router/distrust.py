"""What the pool learns of endpoints' health, told to the relay, where requests wait for endpoints."""

from __future__ import annotations

from typing import Protocol

from router.pool.observers import PoolObserver


class Waits(Protocol):
    """What `router.upstream.relay` does about it."""

    def distrust(self, url: str) -> None: ...

    def trust(self, url: str) -> None: ...


class Distrust(PoolObserver):
    """Nobody waits for an endpoint that does not answer, and those that wait already are woken."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def trust_changed(self, url: str, trusted: bool) -> None:
        (self._waits.trust if trusted else self._waits.distrust)(url)
