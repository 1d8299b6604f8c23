from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from router.capacity.demand import Qos
from router.capacity.engine_model import EngineModels
from router.capacity.misses import Misses
from router.capacity.plan import Plan, PoolView, Rules
from router.capacity.planner import Planner
from router.capacity.startup import Startups
from router.capacity.traffic import Traffic
from router.core import Endpoint, EndpointMetrics, EndpointState, Health, Inflight, ModelCard, Role
from router.planning.actuator import Published
from router.planning.messages import Said
from router.planning.pools import Pools
from router.planning.service import Planning, PlanningOptions
from router.planning.solver import NoPlan, Solver
from router.planning.view import PlanMetrics, described
from router.planning.wake import Wake
from tests.support.planning import variant


class Here(Solver):
    """Plans in this process, or not at all."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.planner: Planner | None = Planner()

    async def plan(self, now: float, views: Sequence[PoolView], quotas: Mapping[str, int]) -> Said:
        if self.planner is None:
            raise NoPlan("TimeoutError")
        return Said(1, self.planner.plan(now, views, quotas), 0.0)


class Hand(Published):
    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.broken = False

    async def apply(self, plan: Plan) -> None:
        if self.broken:
            raise OSError("no more processes")
        self.plans.append(plan)


class World:
    def __init__(self, *, rules: Rules | None = None) -> None:
        self.now = 1000.0
        self.in_flight = 0
        self.states: list[EndpointState] = []
        self.solver, self.hand, self.traffic, self.startups = Here(), Hand(), Traffic(), Startups()
        pools = Pools([variant()])
        self.wake = Wake(most=10, wait_s=10.0, pool_of=pools.of, knows=pools.knows, coming=self.hand.coming)
        self.misses = Misses()
        self.planning = Planning(
            options=PlanningOptions(interval_s=15.0, rules=rules or Rules(), stale_s=60.0),
            solver=self.solver,
            traffic=self.traffic,
            misses=self.misses,
            startups=self.startups,
            pools=pools,
            engines=EngineModels(lambda: self.now),
            states=lambda: self.states,
            inflight=lambda _: Inflight(requests=self.in_flight),
            routers=lambda: 1,
            actuator=self.hand,
            wake=self.wake,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def engine(self, name: str, role: Role = Role.BOTH, **labels: str) -> None:
        self.states.append(
            EndpointState(
                endpoint=Endpoint(id=name, url=f"http://{name}", role=role, labels=labels),
                health=Health.HEALTHY,
                models={"m": ModelCard(id="m")},
                metrics=EndpointMetrics(taken_at=self.now),
            )
        )

    def heard(self) -> None:
        """All engines tell again how they are."""
        told = EndpointMetrics(taken_at=self.now)
        self.states = [msgspec.structs.replace(state, metrics=told) for state in self.states]

    def busy(self) -> None:
        for step in range(600):
            at = self.now - 60.0 + step / 10
            self.traffic.arrived("m", Qos.INTERACTIVE, 2500, at)
            self.traffic.answered("m", Qos.INTERACTIVE, 2500, 0, 250, at)


async def test_what_became_of_requests_is_in_the_plan() -> None:
    world = World(rules=Rules(budget_s=3600.0))
    world.engine("a")
    world.busy()
    for number in range(1000):
        world.misses.answered("m", number >= 2, world.now - 60.0)
    await world.planning.cycle()
    (plan,) = world.planning.status.plans
    assert plan.attained == pytest.approx(0.998)
    assert plan.target is not None
    assert plan.target < 0.99
    assert "99.80% met the objective lately" in plan.why


async def test_traffic_becomes_a_plan_and_the_plan_is_carried_out() -> None:
    world = World()
    world.engine("a")
    world.busy()
    await world.planning.cycle()
    assert world.hand.plans[0].total > 3
    shown = described(world.planning.status, world.now)
    assert shown["plans"][0]["desired"] == [{"role": "both", "variant": "big", "count": world.hand.plans[0].total}]
    assert shown["plans"][0]["why"]


async def test_metrics_that_stop_hold_what_is_there() -> None:
    world = World()
    world.engine("a")
    world.busy()
    world.now += 61.0
    await world.planning.cycle()
    assert (world.hand.plans[0].reason, world.hand.plans[0].total) == ("stale", 1)


async def test_a_solver_that_gives_nothing_leaves_the_last_plan_in_force() -> None:
    world = World()
    world.engine("a")
    world.busy()
    await world.planning.cycle()
    before = world.planning.status.plans
    world.solver.planner = None
    await world.planning.cycle()
    assert world.planning.status.plans == before
    assert world.planning.status.failures == 1
    assert len(world.hand.plans) == 1


async def test_an_actuator_that_fails_does_not_end_the_planner() -> None:
    world = World()
    world.engine("a")
    world.hand.broken = True
    await world.planning.cycle()
    world.hand.broken = False
    await world.planning.cycle()
    assert len(world.hand.plans) == 1


async def test_a_disaggregated_pool_stays_so() -> None:
    world = World()
    world.engine("p", Role.PREFILL)
    world.engine("d", Role.DECODE)
    world.busy()
    await world.planning.cycle()
    plan = world.hand.plans[0]
    assert plan.form == "disaggregated"
    assert {role for role, _ in plan.desired} == {Role.PREFILL, Role.DECODE}


async def test_an_empty_pool_that_may_be_empty_is_woken_by_who_waits() -> None:
    world = World(rules=Rules(least=0))
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 0
    world.wake.held["default"] = 3
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 1
    assert "3 requests wait" in world.hand.plans[-1].why


async def test_the_start_up_that_is_planned_with_is_learnt_from_engines_that_came() -> None:
    world = World()
    world.engine("a")
    world.busy()
    for name, took in (("b", 30.0), ("c", 50.0)):
        await world.planning.cycle()
        world.now += took
        world.engine(name)
        world.busy()
        await world.planning.cycle()
        world.startups.first_token(name, 2.0)
    await world.planning.cycle()
    assert world.planning.status.startup_s == {("m", "big"): 82.0}
    assert described(world.planning.status, world.now)["startup_s"] == [
        {"pool": "m", "variant": "big", "seconds": 82.0}
    ]


async def test_a_router_that_has_just_begun_takes_no_fleet_to_zero() -> None:
    world = World(rules=Rules(least=0, idle_s=600.0, stabilization_s=1e6))
    world.engine("a")
    await world.planning.cycle()
    world.now += 599.0
    world.heard()
    await world.planning.cycle()
    assert [plan.total for plan in world.hand.plans] == [1, 1]
    world.now += 2.0
    await world.planning.cycle()
    assert (world.hand.plans[-1].total, world.hand.plans[-1].why) == (0, "no request for 600 s")


async def test_an_answer_that_takes_longer_than_idle_keeps_its_engine() -> None:
    world = World(rules=Rules(least=0, idle_s=60.0, stabilization_s=1e6))
    world.engine("a")
    world.in_flight = 1
    for _ in range(4):
        await world.planning.cycle()
        world.now += 50.0
        world.heard()
    assert {plan.total for plan in world.hand.plans} == {1}


async def test_held_requests_that_just_went_on_count_for_the_pool_that_their_engine_made_known() -> None:
    world = World(rules=Rules(least=0, idle_s=15.0, stabilization_s=1e6))
    world.wake.held["default"] = 3
    await world.planning.cycle()
    world.now += 20.0
    world.engine("a")
    await world.planning.cycle()
    world.wake.held.clear()
    world.now += 1.0
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 1


async def test_the_same_plan_again_is_counted_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.engine("a")
    world.busy()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await world.planning.cycle()
    told = [record.getMessage() for record in caplog.records if "planner: pool m" in record.getMessage()]
    assert world.planning.status.actions == {("m", "out"): 1}
    assert len(told) == 1
    assert f"1 both big -> {world.hand.plans[0].total} both big" in told[0]


async def test_an_unknown_variant_is_warned_of_once_and_published_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.engine("a", variant="odd")
    for _ in range(2):
        await world.planning.cycle()
    assert len([record for record in caplog.records if "variant odd" in record.getMessage()]) == 1
    assert world.hand.plans[-1].present == {(Role.BOTH, "odd"): 1}


def silence(world: World, *names: str) -> None:
    """These do not answer probes any more; all others do."""
    world.states = [
        msgspec.structs.replace(state, health=Health.UNHEALTHY if state.endpoint.id in names else Health.HEALTHY)
        for state in world.states
    ]


async def three(rules: Rules | None = None) -> World:
    world = World(rules=rules)
    for name in ("a", "b", "c"):
        world.engine(name)
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 3
    return world


async def test_engines_that_all_stop_answering_are_held_for_as_long_as_they_do_not() -> None:
    world = await three()
    silence(world, "a", "b", "c")
    for _ in range(40):
        world.now += 20.0
        await world.planning.cycle()
    plan = world.hand.plans[-1]
    assert {(each.reason, each.total) for each in world.hand.plans[1:]} == {("stale", 3)}
    assert plan.present == {(Role.BOTH, "big"): 3}
    assert "none that answers" in plan.why
    assert plan.cost_per_hour == 3 * variant().cost_per_hour


async def test_a_router_that_begins_while_no_engine_answers_wants_what_is_configured() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.engine(name)
    silence(world, "a", "b", "c")
    await world.planning.cycle()
    assert (world.hand.plans[-1].reason, world.hand.plans[-1].total) == ("stale", 3)


async def test_an_engine_that_does_not_answer_is_not_wanted_less_and_may_be_replaced() -> None:
    world = await three()
    silence(world, "c")
    await world.planning.cycle()
    plan = world.hand.plans[-1]
    assert (plan.total, plan.present, plan.silent) == (3, {(Role.BOTH, "big"): 2}, {(Role.BOTH, "big"): 1})
    world.busy()
    await world.planning.cycle()
    assert world.hand.plans[-1].total > 3


async def test_an_engine_that_leaves_the_pool_is_not_held() -> None:
    world = await three()
    world.states.pop()
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 2


async def test_an_engine_that_the_planner_let_go_is_not_held_when_it_stops_answering() -> None:
    world = await three(Rules(stabilization_s=100.0))
    for _ in range(8):
        world.now += 20.0
        world.heard()
        await world.planning.cycle()
    assert world.hand.plans[-1].total == 1
    silence(world, "b", "c")
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 1
    silence(world, "a", "b", "c")
    await world.planning.cycle()
    assert (world.hand.plans[-1].reason, world.hand.plans[-1].total) == ("stale", 1)


async def test_a_pool_at_zero_whose_addresses_stay_configured_stays_at_zero_until_somebody_waits() -> None:
    world = await three(Rules(least=0, idle_s=60.0))
    world.now += 61.0
    world.heard()
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 0
    silence(world, "a", "b", "c")
    for _ in range(3):
        world.now += 20.0
        await world.planning.cycle()
        assert world.hand.plans[-1].total == 0
    world.wake.held["m"] = 2
    await world.planning.cycle()
    assert world.hand.plans[-1].total == 1


async def test_the_number_that_is_held_is_published() -> None:
    world = await three()
    silence(world, "a", "b", "c")
    world.now += 100.0
    await world.planning.cycle()
    samples = {
        sample.name: sample.value
        for metric in PlanMetrics(lambda: world.planning.status, lambda: world.now).collect()
        for sample in metric.samples
        if sample.labels.get("variant") == "big"
    }
    assert samples["kvrouter_desired_replicas"] == 3
    assert samples["kvrouter_desired_ratio"] == 1


async def test_a_pool_at_zero_is_published_as_zero_and_not_as_missing() -> None:
    world = await three(Rules(least=0, idle_s=60.0))
    world.now += 61.0
    world.heard()
    await world.planning.cycle()
    world.states.clear()
    await world.planning.cycle()
    assert world.hand.plans[-1].desired == {}
    (desired,) = (
        metric
        for metric in PlanMetrics(lambda: world.planning.status, lambda: world.now).collect()
        if metric.name == "kvrouter_desired_replicas"
    )
    assert [(sample.labels["variant"], sample.value) for sample in desired.samples] == [("big", 0)]
