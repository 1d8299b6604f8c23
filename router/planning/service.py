"""Planning: the task that asks the solver every few seconds, keeps the last plans, and has them carried out.

Fails safe. A solver that gives nothing in time leaves the last plans in force; metrics of engines that are too old make
a pool's demand unknown, and so do engines of which none answers, which holds what is there; an actuator that fails is
tried again with the next plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from router.capacity.demand import Demand
from router.capacity.engine_model import EngineModels
from router.capacity.misses import Misses
from router.capacity.plan import Action, Key, Plan, PoolView, Rules, counted
from router.capacity.startup import Startups
from router.capacity.traffic import Traffic
from router.capacity.variants import Variant
from router.core import EndpointState, Inflight
from router.planning.actuator import Actuator
from router.planning.holding import Holding
from router.planning.idleness import Idleness
from router.planning.pools import DEFAULT, Pools
from router.planning.solver import NoPlan, Solver
from router.planning.wake import Wake
from router.ports import Clock

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_NOTE_S = 1.0
_LEAST_WAKE_S = 1.0
"""Between two cycles, even when requests begin to be held."""


class PlanningOptions(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float
    rules: Rules
    as_present: bool = True
    """A pool keeps the form it has."""
    quotas: Mapping[str, int] = {}
    stale_s: float = 60.0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked of the planner at any time."""

    plans: Sequence[Plan] = ()
    made_at: float | None = None
    """Monotonic seconds."""
    took_s: float | None = None
    failures: int = 0
    held: Mapping[str, int] = {}
    actions: Mapping[tuple[str, str], int] = {}
    """(pool, action) -> plans that wanted something else than the one before."""
    seen: Mapping[str, Collection[Key]] = {}
    """Pool -> roles and variants that it has or had, as long as there is the pool: 0 of one is a number too."""
    startup_s: Mapping[tuple[str, str], float] = {}
    """(pool, variant) -> seconds to the first useful token that are planned with."""


class Planning:
    def __init__(
        self,
        *,
        options: PlanningOptions,
        solver: Solver,
        traffic: Traffic,
        misses: Misses,
        startups: Startups,
        pools: Pools,
        engines: EngineModels,
        states: Callable[[], Sequence[EndpointState]],
        inflight: Callable[[str], Inflight],
        routers: Callable[[], int],
        actuator: Actuator,
        wake: Wake,
        clock: Clock,
        wall: Callable[[], float],
    ) -> None:
        self._options = options
        self._solver = solver
        self._traffic = traffic
        self._misses = misses
        self._startups = startups
        self._pools = pools
        self._engines = engines
        self._states = states
        self._inflight = inflight
        self._routers = routers
        self._actuator = actuator
        self._wake = wake
        self._clock = clock
        self._wall = wall
        self._idleness = Idleness()
        self._holding = Holding()
        self._status = Status()
        self._actions: dict[tuple[str, str], int] = {}
        self._seen: dict[str, frozenset[Key]] = {}
        self._said: dict[str, tuple[Action, Mapping[Key, int]]] = {}
        self._warned: set[str] = set()

    @property
    def status(self) -> Status:
        return msgspec.structs.replace(self._status, held=dict(self._wake.held))

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                began = self._clock()
                await self.cycle()
                self._wake.asked.clear()
                await self._rest(began)
        finally:
            await self._solver.aclose()

    async def watch(self) -> None:
        """Lets held requests look, as long as there are any, and notes who has come. Until cancelled."""
        noted = self._clock()
        while True:
            if self._wake.held:
                # Who goes on is counted where it belongs, though no plan was made since its engine came.
                self._pools.look(self._states())
            self._wake.look()
            if self._clock() - noted >= _NOTE_S:
                noted = self._clock()
                self._note(self._states())
            await asyncio.sleep(_LOOK_S)

    def _note(self, states: Sequence[EndpointState]) -> None:
        self._pools.look(states)
        names, now, held = self._pools.names(states), self._clock(), self._wake.held
        self._idleness.kept(names)
        for name in names:
            its = [state for state in states if self._pools.where(state) == name]
            self._startups.seen(name, self._pools.engines(its), now)
            # What was held before its model was known may be anybody's.
            waits = held.get(name, 0) + held.get(DEFAULT, 0) > 0
            busy = waits or any(self._inflight(state.endpoint.id).requests for state in its)
            self._idleness.looked(name, busy, now)

    async def _rest(self, began: float) -> None:
        """Until the next cycle is due, or sooner when a pool must be woken."""
        least = began + _LEAST_WAKE_S - self._clock()
        if least > 0:
            await asyncio.sleep(least)
        left = began + self._options.interval_s - self._clock()
        if left > 0:
            try:
                async with asyncio.timeout(left):
                    await self._wake.asked.wait()
            except TimeoutError:
                return

    async def cycle(self) -> None:
        """One question, one answer, carried out."""
        views = self.views()
        try:
            said = await self._solver.plan(self._clock(), views, self._options.quotas)
        except NoPlan as error:
            self._status = msgspec.structs.replace(self._status, failures=self._status.failures + 1)
            logger.warning("no plan (%s): the last one stays in force", error)
            return
        plans = [self._holding.held(plan, view) for view, plan in zip(views, said.plans, strict=True)]
        for view, plan in zip(views, plans, strict=True):
            self._startups.asked(plan.pool, plan.desired, view.fleet.ready, self._clock())
            self._tell(plan)
            self._seen[plan.pool] = self._seen.get(plan.pool, frozenset()).union(
                plan.desired, plan.present, plan.silent
            )
        for gone in self._said.keys() - {plan.pool for plan in plans}:
            del self._said[gone]
            del self._seen[gone]
            self._holding.forget(gone)
        self._status = Status(
            plans=plans,
            made_at=self._clock(),
            took_s=said.took_s,
            failures=self._status.failures,
            actions=dict(self._actions),
            seen=dict(self._seen),
            startup_s={(view.name, variant.name): variant.startup_s for view in views for variant in view.variants},
        )
        for plan in plans:
            try:
                await self._actuator.apply(plan)
            except OSError as error:
                logger.error("the plan for pool %s cannot be carried out: %s", plan.pool, error.strerror or error)

    def _tell(self, plan: Plan) -> None:
        """Counts and logs a plan that is another than the last: the same one again is told of once."""
        said = (plan.action, plan.desired)
        if self._said.get(plan.pool) == said:
            return
        self._said[plan.pool] = said
        if plan.action is Action.HOLD:
            return
        key = (plan.pool, plan.action.value)
        self._actions[key] = self._actions.get(key, 0) + 1
        has, wants = counted(plan.present), counted(plan.desired)
        logger.info(
            "planner: pool %s: %s (%s): %s -> %s: %s", plan.pool, plan.action.value, plan.reason, has, wants, plan.why
        )

    def _warn(self) -> None:
        for name in self._pools.strangers():
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "endpoints are labelled variant %s, of which capacity.variants_file tells nothing: they count as "
                    "slow engines until their laws are learnt, and no more of them are asked for",
                    name,
                )

    def views(self) -> list[PoolView]:
        """What the planner is asked about now."""
        states = self._states()
        self._note(states)
        profiles = self._engines.profiles()
        sure = {name: self._engines.estimate(name) for name in profiles}
        starting = self._actuator.starting()
        found = []
        for name in self._pools.names(states):
            its = [state for state in states if self._pools.where(state) == name]
            variants = self._pools.variants(its, profiles, sure, self._startups.of)
            last = self._traffic.last_arrival(name)
            rules, fleet = self._rules(its), self._pools.fleet(name, its, starting)
            quiet = self._holding.silent(name, fleet, rules.least)
            found.append(
                PoolView(
                    name=name,
                    variants=variants,
                    rules=rules,
                    demand=None if quiet else self._demand(name, its, variants),
                    fleet=fleet,
                    idle_s=self._idleness.of(name, self._clock(), None if last is None else self._wall() - last),
                    record=self._misses.record(name, self._wall(), self._options.rules.budget_s),
                )
            )
        self._warn()
        return found

    def _rules(self, states: Sequence[EndpointState]) -> Rules:
        rules = self._options.rules
        if self._options.as_present and states:
            split = any(state.endpoint.role.value == "prefill" for state in states)
            return msgspec.structs.replace(rules, aggregated=not split, disaggregated=split)
        return rules

    def _demand(self, pool: str, states: Sequence[EndpointState], variants: Sequence[Variant]) -> Demand | None:
        """None while engines are there and none has been heard of lately."""
        now = self._clock()
        heard = [state.metrics.taken_at for state in states if state.metrics is not None]
        if states and heard and now - max(heard) > self._options.stale_s:
            return None
        ahead = max((variant.startup_s for variant in variants), default=0.0) + self._options.interval_s
        # Others see as much as this one: requests are spread over routers evenly.
        demand = self._traffic.demand(pool, self._wall(), ahead).scaled(float(self._routers()))
        backlog = sum(self._inflight(state.endpoint.id).prefill_tokens for state in states)
        return msgspec.structs.replace(demand, backlog_tokens=float(backlog), held=self._wake.held.get(pool, 0))

    async def aclose(self) -> None:
        await self._actuator.aclose()
        await self._solver.aclose()
