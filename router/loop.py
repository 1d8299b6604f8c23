"""Loop lag: how late the event loop runs a timer, the first sign of work that should not be on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopLag:
    """`seconds` is the largest lateness of the last ten samples."""

    def __init__(self, clock: Callable[[], float], interval_s: float = 0.25) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._samples = [0.0] * 10

    @property
    def seconds(self) -> float:
        return max(self._samples)

    async def run(self) -> None:
        """Until cancelled."""
        turn = 0
        while True:
            due = self._clock() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self._samples[turn] = max(self._clock() - due, 0.0)
            turn = (turn + 1) % len(self._samples)
