"""Actuator: who carries out a plan, as a port; and the one that only says what it would do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from router.capacity.plan import Action, Plan, counted
from router.planning.pools import Starting

logger = logging.getLogger(__name__)


class Actuator(Protocol):
    coming: str
    """What it does for an engine that is wanted, as part of a sentence to who waits for one."""

    def starting(self) -> Sequence[Starting]:
        """Engines that were asked for and do not serve yet."""
        ...

    async def apply(self, plan: Plan) -> None:
        """Makes the fleet as the plan wants it, in its own time: starts are begun, scale-ins drain first.

        Raises OSError when it cannot begin.
        """
        ...

    async def aclose(self) -> None:
        """Ends what it started."""
        ...


class Published:
    """Somebody else carries it out, by the metrics: HPA, KEDA, an operator."""

    coming = (
        "one is asked for by the router's metrics, for HPA, KEDA or an operator to start (capacity.actuator: metrics)"
    )

    def starting(self) -> Sequence[Starting]:
        return ()

    async def apply(self, plan: Plan) -> None: ...

    async def aclose(self) -> None: ...


class DryRun(Published):
    """Logs what would be done."""

    coming = "the planner only logs what it would start (capacity.actuator: dry-run), so somebody else must start one"

    def __init__(self) -> None:
        self._last: dict[str, object] = {}

    async def apply(self, plan: Plan) -> None:
        wanted = dict(plan.desired)
        if plan.action is not Action.HOLD and self._last.get(plan.pool) != wanted:
            shown = (plan.pool, counted(wanted), plan.reason, plan.why)
            logger.info("planner, dry run: pool %s would have %s (%s: %s)", *shown)
        self._last[plan.pool] = wanted
