"""Plan: everything a replay was asked for, as one value, and what it takes to run one policy with one seed of it.

A plan can be sent to another process; what it names is read there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path

import msgspec

from loadtest.replay.clairvoyant import Arrival, Moment, look_ahead
from loadtest.replay.fleet import Fleet, Member, slower
from loadtest.replay.inputs import read_workload
from loadtest.replay.lines import InputError
from loadtest.replay.policies.catalogue import find
from loadtest.replay.processes import processes
from loadtest.replay.results import Outlook, Run, Slo, Window
from loadtest.replay.simulation import Conditions, Simulation
from loadtest.replay.synthetic import KINDS, make
from loadtest.replay.workload import Workload, arriving_from, faster, jittered, merged, with_answers, with_sessions
from loadtest.simulator.settings import SimulatorConfigError, find_profile
from loadtest.simulator.timing import EngineProfile
from router.core import Role
from router.errors import ConfigError

_SYNTHETIC, _DAY = "synthetic:", "day:"

Progress = Callable[[str, int, int], None]
"""Told policy, seed and how many requests of that run are done."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    traces: Sequence[str]
    policies: Sequence[str]
    seeds: Sequence[int] = (1,)
    engines: int = 8
    prefill: int = 0
    decode: int = 0
    profiles: Sequence[str] = ("70b-tp4",)
    """Dealt out to the engines in turn."""
    slow: dict[str, float] = {}
    """Engine name -> factor on its speed."""
    kv_scale: float = 1.0
    deaths: Sequence[tuple[float, str]] = ()
    joins: Sequence[float] = ()
    speed: float = 1.0
    skip: float = 0.0
    """Seconds of the trace, before `speed`, whose requests are left out, with the turns that wait for them."""
    limit: int | None = None
    block_size: int | None = None
    closed: bool | None = None
    jitter: bool = True
    conditions: Conditions = Conditions()
    slos: Sequence[Slo] = (Slo(2.0, 0.05),)
    window: Window = Window()
    outlooks: int = 0
    """Short windows on which a search that knows the future is run, spread over those that count."""
    outlook_size: int = 40


def load(plan: Plan, remarked: Callable[[str], None] = lambda _: None) -> Workload:
    """The traces of the plan, merged, before seed and speed. `remarked` is told what of them is not replayed.

    Raises `ConfigError`.
    """
    try:
        read = [_read(trace, plan, remarked) for trace in plan.traces]
        workload = read[0] if len(read) == 1 else merged("+".join(w.name for w in read), read)
    except InputError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        raise ConfigError(f"{error}: replay them one by one, or give --block-size") from None
    requests = arriving_from(workload.requests, plan.skip) if plan.skip else workload.requests
    if plan.limit is not None:
        requests = requests[: plan.limit]
    if all(request.session is None for request in requests):
        requests = with_sessions(requests)
    if plan.conditions.cache_answers:
        requests = with_answers(requests, workload.block_size)
    return msgspec.structs.replace(workload, requests=requests)


def _read(trace: str, plan: Plan, remarked: Callable[[str], None]) -> Workload:
    if trace.startswith(_DAY):
        raise ConfigError(f"{trace}: days are for fleets that grow and shrink: give --scaling too, or name a trace")
    if not trace.startswith(_SYNTHETIC):
        return read_workload(Path(trace), block_size=plan.block_size, closed=plan.closed, remarked=remarked)
    kind = trace.removeprefix(_SYNTHETIC)
    if kind not in KINDS:
        raise ConfigError(
            f"{trace}: there is no such workload: it is one of {', '.join(_SYNTHETIC + k for k in KINDS)}"
        )
    if plan.block_size is not None:
        raise ConfigError(f"--block-size: {trace} has its own, leave it out")
    return make(kind)


def seeded(workload: Workload, plan: Plan, seed: int) -> Workload:
    """With the arrivals of one seed, at the plan's speed."""
    requests = workload.requests
    if plan.jitter:
        requests = jittered(requests, random.Random(f"{seed}/arrivals"))
    return msgspec.structs.replace(workload, requests=faster(requests, plan.speed))


def engine_profile(name: str) -> EngineProfile:
    """Raises `ConfigError`."""
    try:
        return find_profile(name)
    except SimulatorConfigError as error:
        raise ConfigError(f"--engine-profile: {str(error).removeprefix('profile: ')}") from None


def fleet(plan: Plan) -> Fleet:
    """Raises `ConfigError`."""
    profiles = [engine_profile(name) for name in plan.profiles]
    roles = [Role.BOTH] * plan.engines
    if plan.prefill or plan.decode:
        roles = [Role.PREFILL] * plan.prefill + [Role.DECODE] * plan.decode
    everyone = [*roles, *([Role.BOTH] * len(plan.joins))]
    members: list[Member] = []
    for number, role in enumerate(everyone):
        name, profile = f"e{number}", profiles[number % len(profiles)]
        members.append(
            Member(
                name=name,
                profile=slower(profile, plan.slow.get(name, 1.0)),
                role=role,
                kv_tokens=int(profile.kv_tokens * plan.kv_scale),
            )
        )
    names = {member.name for member in members}
    for name in [*plan.slow, *(name for _, name in plan.deaths)]:
        if name not in names:
            raise ConfigError(f"there is no engine {name}: they are e0 to e{len(members) - 1}")
    first = len(roles)
    return Fleet(members=members[:first], deaths=plan.deaths, joins=list(zip(plan.joins, members[first:], strict=True)))


def run_one(
    plan: Plan, workload: Workload, policy: str, seed: int, progress: Callable[[int], None] = lambda _: None
) -> Run:
    """Raises `ConfigError`."""
    replayed, contestant = seeded(workload, plan, seed), find(policy)
    looks = plan.outlooks and not (contestant.pooled or plan.prefill)
    moments = window_starts(plan, replayed) if looks else ()
    simulation = Simulation(replayed, contestant, fleet(plan), plan.conditions, seed=seed, moments=moments)
    run = simulation.run(progress)
    # Under the name it was asked for, which for a file is its path.
    outlooks = _outlooks(plan, replayed, run, simulation.moments, seed)
    return msgspec.structs.replace(run, policy=policy, outlooks=outlooks)


def window_starts(plan: Plan, workload: Workload) -> list[int]:
    """Numbers of the requests that short windows begin with; none where fewer count than a window has."""
    numbers = [r.number for r in workload.requests if plan.window.begin <= r.at < plan.window.end]
    numbers = numbers[: max(len(numbers) - plan.outlook_size, 0)]
    return [numbers[int((i + 0.5) * len(numbers) / plan.outlooks)] for i in range(plan.outlooks)] if numbers else []


def _outlooks(plan: Plan, workload: Workload, run: Run, moments: Sequence[Moment], seed: int) -> list[Outlook]:
    """What became of each window, beside the best that could have."""
    requests = {request.number: request for request in workload.requests}
    order = sorted(run.results, key=lambda result: (result.at, result.number))
    places = {result.number: place for place, result in enumerate(order)}
    outlooks = []
    for moment in moments:
        first = places[moment.number]
        window = [r for r in order[first : first + plan.outlook_size] if r.endpoint in moment.engines]
        if window:
            arrivals = [Arrival(result.at, requests[result.number]) for result in window]
            placed = [result.endpoint or "" for result in window]
            rng = random.Random(f"{seed}/{moment.number}")
            answers = plan.conditions.cache_answers
            outlooks.append(look_ahead(moment, arrivals, placed, rng, cache_answers=answers))
    return outlooks


def run_all(plan: Plan, workload: Workload, jobs: int, progress: Progress) -> list[Run]:
    """Every policy with every seed, policies in the order of the plan. Raises `ConfigError`."""
    pairs = [(policy, seed) for policy in plan.policies for seed in plan.seeds]
    if jobs == 1:
        return [
            run_one(plan, workload, policy, seed, lambda done, p=policy, s=seed: progress(p, s, done))  # type: ignore[misc]
            for policy, seed in pairs
        ]
    runs: dict[tuple[str, int], Run] = {}
    with processes(jobs) as pool:
        futures = {pool.submit(_elsewhere, plan, policy, seed): (policy, seed) for policy, seed in pairs}
        for future in as_completed(futures):
            policy, seed = futures[future]
            runs[policy, seed] = future.result()
            progress(policy, seed, len(workload.requests))
    return [runs[pair] for pair in pairs]


def _elsewhere(plan: Plan, policy: str, seed: int) -> Run:
    return run_one(plan, load(plan), policy, seed)
