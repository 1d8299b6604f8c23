"""Lifecycle: whether the router takes requests, and the exchanges it still has to finish."""

from __future__ import annotations

import asyncio
from typing import Protocol

from router.errors import ShuttingDown


class Cuttable(Protocol):
    def cut(self) -> None:
        """End the exchange now; its client is told."""
        ...


class Lifecycle:
    """Running -> draining (still accepting, no longer ready) -> refusing -> cut. The front registers its exchanges."""

    def __init__(self) -> None:
        self.draining = False
        """It is ending: ``/ready`` says no."""
        self.out_of_service = False
        """An administrator took it out of service: ``/ready`` says no, and nothing else changes."""
        self._refusing = False
        self._active: set[Cuttable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def active(self) -> int:
        return len(self._active)

    def enter(self, exchange: Cuttable) -> None:
        """Raises `ShuttingDown` once the router refuses."""
        if self._refusing:
            raise ShuttingDown("The router is shutting down; send the request to another one.", retry_after_s=1)
        self._active.add(exchange)
        self._idle.clear()

    def leave(self, exchange: Cuttable) -> None:
        self._active.discard(exchange)
        if not self._active:
            self._idle.set()

    def refuse(self) -> None:
        """From now on new exchanges are refused."""
        self.draining = self._refusing = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """True when nothing is in flight, False when the time ran out first."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def cut_all(self) -> None:
        for exchange in list(self._active):
            exchange.cut()
