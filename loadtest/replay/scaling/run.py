"""Runs one workload under several laws of scaling, from the same fleet, and says what each gave and took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from itertools import pairwise

import msgspec

from loadtest.replay.fleet import Fleet, Member
from loadtest.replay.plan import Plan, engine_profile, load, seeded
from loadtest.replay.policies.catalogue import find
from loadtest.replay.processes import processes
from loadtest.replay.results import Result, Slo
from loadtest.replay.scaling.base import Given
from loadtest.replay.scaling.catalogue import first_fleet, make_law
from loadtest.replay.scaling.days import DAY, make_day
from loadtest.replay.scaling.planned import Planned
from loadtest.replay.scaling.simulation import ScalingSimulation, Step
from loadtest.replay.workload import Workload
from loadtest.simulator.timing import EngineProfile
from router.core import Role
from router.errors import ConfigError

_LONGEST_GAP_S = 7 * 86_400.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for."""

    plan: Plan
    laws: Sequence[str]
    startup_s: float = 90.0
    disaggregated: bool = False
    preempt: bool = True
    """Batch requests give way to the others."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One law on one workload."""

    law: str
    requests: int
    """Interactive ones."""
    attained: float
    """Share of them that met both objectives."""
    ttft_met: float
    tpot_met: float
    failed: int
    batch_done: int
    engine_hours: float
    actions: int
    peak: int
    most_held: int
    steps: Sequence[Step]
    reasons: Sequence[tuple[float, str]] = ()
    """(seconds, sentence) of the planner's changes."""


Progress = Callable[[int], None]


def read(scaling: Scaling, remarked: Callable[[str], None] = lambda _: None) -> tuple[Workload, frozenset[int]]:
    """The workload and the numbers of its latency-tolerant requests. `remarked` as for `loadtest.replay.plan.load`.

    Raises `ConfigError`.
    """
    traces = scaling.plan.traces
    days = [trace.removeprefix(DAY) for trace in traces if trace.startswith(DAY)]
    if not days:
        workload = load(scaling.plan, remarked)
        _check_gaps(workload)
        return seeded(workload, scaling.plan, scaling.plan.seeds[0]), frozenset()
    if len(traces) > 1:
        raise ConfigError(f"{DAY}{days[0]} is replayed alone: leave the other traces out")
    if scaling.plan.block_size is not None:
        raise ConfigError(f"--block-size: {DAY}{days[0]} has its own, leave it out")
    return make_day(days[0], scaling.plan.seeds[0])


def _check_gaps(workload: Workload) -> None:
    """Raises `ConfigError`: a fleet is looked at every few seconds, whether somebody asks for it or not."""
    times = [request.at for request in workload.requests]
    for before, at in pairwise(times):
        if at - before > _LONGEST_GAP_S:
            raise ConfigError(
                f"{workload.name}: nothing arrives between second {before:.0f} and second {at:.0f}, and "
                f"--scaling plays gaps of at most {_LONGEST_GAP_S / 86_400:.0f} days: cut the trace there"
            )


def run_laws(
    scaling: Scaling,
    jobs: int,
    progress: Progress = lambda _: None,
    remarked: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """In the order of the laws. `progress` is told how many are done. Raises `ConfigError`."""
    workload, batch = read(scaling, remarked)
    for law in scaling.laws:
        make_law(law, _given(scaling, workload, batch), _profile(scaling))
    if jobs == 1:
        found = []
        for done, law in enumerate(scaling.laws):
            progress(done)
            found.append(run_law(scaling, workload, batch, law))
        return found
    outcomes: dict[str, Outcome] = {}
    with processes(jobs) as pool:
        futures = [pool.submit(_elsewhere, scaling, law) for law in scaling.laws]
        for future in as_completed(futures):
            outcome = future.result()
            outcomes[outcome.law] = outcome
            progress(len(outcomes))
    return [outcomes[law] for law in scaling.laws]


def _elsewhere(scaling: Scaling, law: str) -> Outcome:
    workload, batch = read(scaling)
    return run_law(scaling, workload, batch, law)


def run_law(scaling: Scaling, workload: Workload, batch: frozenset[int], name: str) -> Outcome:
    profile, given = _profile(scaling), _given(scaling, workload, batch)
    law = make_law(name, given, profile)
    first = first_fleet(name, given, profile)
    members = [
        Member(name=f"{role.value}{number}", profile=profile, role=role, kv_tokens=profile.kv_tokens)
        for role, count in first.items()
        for number in range(count)
    ]
    simulation = ScalingSimulation(
        workload,
        find(scaling.plan.policies[0]),
        Fleet(members=members),
        scaling.plan.conditions,
        law,
        seed=scaling.plan.seeds[0],
        startup_s=scaling.startup_s,
        batch=batch,
        preempt=scaling.preempt,
    )
    run, slo = simulation.run(), scaling.plan.slos[0]
    ledger = simulation.ledger()
    counted = [result for result in run.results if result.number not in batch]
    count = max(len(counted), 1)
    return Outcome(
        law=name,
        requests=len(counted),
        attained=sum(map(slo.met, counted)) / count,
        ttft_met=sum(result.ttft_s is not None and result.ttft_s <= slo.ttft_s for result in counted) / count,
        tpot_met=sum(_tpot_met(result, slo) for result in counted) / count,
        failed=sum(result.outcome.value != "ok" for result in run.results),
        batch_done=len(run.results) - len(counted),
        engine_hours=ledger.engine_s / 3600,
        actions=ledger.actions,
        peak=max(step.total for step in ledger.steps),
        most_held=ledger.held,
        steps=ledger.steps,
        reasons=_reasons(law),
    )


def _reasons(law: object) -> list[tuple[float, str]]:
    match law:
        case Planned():
            return [(15.0 * (n + 1), plan.why) for n, plan in enumerate(law.plans) if plan.desired != plan.present]
        case _:
            return []


def _tpot_met(result: Result, slo: Slo) -> bool:
    tpot = result.tpot_s
    return tpot is None or tpot <= slo.tpot_s


def _given(scaling: Scaling, workload: Workload, batch: frozenset[int]) -> Given:
    slo = scaling.plan.slos[0]
    return Given(
        roles=[Role.PREFILL, Role.DECODE] if scaling.disaggregated else [Role.BOTH],
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s,
        startup_s=scaling.startup_s,
        requests=workload.requests,
        batch=batch,
    )


def _profile(scaling: Scaling) -> EngineProfile:
    return engine_profile(scaling.plan.profiles[0])
