"""Retries: whether one more attempt may be made for a request, and the pause before it."""

from __future__ import annotations

import asyncio
import random

from router.core import InferenceRequest
from router.legs.settings import LegSettings
from router.ports import Clock
from router.retry_budget import RetryBudget


class Retries:
    """One for all legs: they share the budget."""

    def __init__(self, budget: RetryBudget, settings: LegSettings, *, clock: Clock, rng: random.Random) -> None:
        self._budget = budget
        self._settings = settings
        self._clock = clock
        self._rng = rng

    def begin(self) -> None:
        """A request has come to its decode leg: the budget grows."""
        self._budget.request(self._clock())

    def allowed(self, request: InferenceRequest) -> bool:
        now = self._clock()
        return now < self.until(request) and self._budget.allows(now)

    def may_continue(self, request: InferenceRequest) -> bool:
        """The same for an answer that broke off: however long ago it began."""
        now = self._clock()
        return (request.deadline_at is None or now < request.deadline_at) and self._budget.allows(now)

    def until(self, request: InferenceRequest) -> float:
        """When the time for further attempts is over."""
        until = request.arrived_at + self._settings.retry_within_s
        return until if request.deadline_at is None else min(until, request.deadline_at)

    async def pause(self, attempt: int) -> None:
        """Counts the attempt that follows `attempt` others, and waits."""
        self._budget.take(self._clock())
        pause_s = min(self._settings.backoff_s * 2.0 ** (attempt - 1), self._settings.backoff_most_s)
        await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
