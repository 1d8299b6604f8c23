"""Study: a matrix of replays (points x policies x seeds), run once each and kept, so that a figure can be had again.

A study is a YAML file:

    base: default                          # whom the others' ratios are taken of
    policies: [default, lmetric, other.yaml]
    seeds: 5
    points:                                # keys are `kvrouter replay`'s words; a list of values is one point for each
      conversation: {traces: [mooncake_conversation.jsonl], engines: [8, 16], speed: [0.8, 1.0], from: 1200}

Each run is a JSON file in the results folder, under the digest of all that it depends on: the point, the policy, the
seed, and the source text of what is driven. A study that was stopped goes on where it was; one whose code changed runs
only what the change can reach.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loadtest.replay.asking import check_plan, check_run, check_workload
from loadtest.replay.digests import PRODUCT, WORLD, digest
from loadtest.replay.plan import Plan, load, run_one
from loadtest.replay.policies.catalogue import find
from loadtest.replay.processes import processes
from loadtest.replay.results import Slo, Summary, Window, slo_headers, summarize
from loadtest.replay.simulation import Conditions
from router import plain_yaml
from router.errors import ConfigError
from router.outputs import make_folder

_Engines = Annotated[int, Meta(ge=1, le=1024)]
_Factor = Annotated[float, Meta(ge=0.001, le=1000)]
_Seconds = Annotated[float, Meta(ge=0)]
_Above0 = Annotated[float, Meta(gt=0)]
_Pause = Annotated[float, Meta(ge=0, le=3600)]


class PointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"begin": "from"}):
    """One situation, in the words of `kvrouter replay`."""

    traces: Annotated[tuple[str, ...], Meta(min_length=1)]
    engines: _Engines | None = None
    """8 unless `prefill` and `decode` are given."""
    prefill: Annotated[int, Meta(ge=0, le=1024)] = 0
    decode: Annotated[int, Meta(ge=0, le=1024)] = 0
    profile: tuple[str, ...] | str = "70b-tp4"
    slow: dict[str, float] = {}
    kv_scale: _Factor = 1.0
    kill: dict[str, _Seconds] = {}
    """Engine -> second of the replay in which it dies."""
    join: tuple[_Seconds, ...] = ()
    """Seconds of the replay."""
    speed: _Factor = 1.0
    skip: _Seconds = 0.0
    begin: _Seconds = 0.0
    until: _Seconds = float("inf")
    """Seconds of the trace before `speed`, as are `begin` and `skip`."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    slo: tuple[tuple[_Above0, _Above0], ...] = ((2.0, 0.05),)
    metrics_age: _Pause = 0.0
    event_lag: _Pause = 0.0
    approximate: bool = False
    send_slo: bool = False
    preemption: bool = False
    cache_answers: bool = False
    policies: tuple[str, ...] = ()
    """More than the study's, here."""


class StudySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policies: tuple[str, ...]
    points: dict[str, dict[str, Any]]
    base: str = "default"
    seeds: Annotated[int, Meta(ge=1, le=100)] = 5


class Point(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    """The key in the study file."""
    name: str
    """What tells it from its group's others, e.g. ``engines 8, speed 1.0``."""
    plan: Plan


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one run."""

    group: str
    point: str
    policy: str
    seed: int
    summary: Summary
    shares: Mapping[str, int]
    """Endpoint -> requests that count."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    base: str
    points: Sequence[Point]

    def runs(self) -> Iterator[tuple[Point, str, int]]:
        """Seeds outermost: a study that is stopped early has all policies of the first seeds."""
        seeds = max((len(point.plan.seeds) for point in self.points), default=0)
        for number in range(seeds):
            for point in self.points:
                for policy in point.plan.policies:
                    yield point, policy, point.plan.seeds[number]


def read_study(path: Path, traces: Path) -> Study:
    """`traces`: the folder that trace names are relative to. Raises `ConfigError`."""
    try:
        settings = msgspec.convert(plain_yaml.load(path.read_text(encoding="utf-8")), StudySettings)
    except OSError as error:
        raise ConfigError(f"--study: {path} cannot be read ({error.strerror}): name a YAML file") from None
    except (UnicodeDecodeError, plain_yaml.NotYaml) as error:
        raise ConfigError(f"--study: {path} is no YAML ({error}): mend the file") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"--study: {path}: {error}: docs/replay.md tells what a study holds") from None
    points = [
        _point(group, values, settings, path, traces)
        for group, written in settings.points.items()
        for values in _expanded(group, written, path)
    ]
    for point in points:
        try:
            check_plan(point.plan)
        except ConfigError as error:
            place = f"{point.group}: {point.name}" if point.name else point.group
            raise ConfigError(f"--study: {path}: point {place}: {error}") from None
    return Study(base=settings.base, points=points)


_LISTS = frozenset(("traces", "join", "slo", "policies"))


def _expanded(group: str, written: Mapping[str, Any], path: Path) -> Iterator[tuple[str, PointSettings]]:
    """(name, settings) for each combination of the values that are lists and need not be."""
    several = {key: value for key, value in written.items() if isinstance(value, list) and key not in _LISTS}
    for chosen in itertools.product(*several.values()):
        varied = dict(zip(several, chosen, strict=True))
        try:
            settings = msgspec.convert({**written, **varied}, PointSettings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--study: {path}: point {group}: {error}: docs/replay.md tells what it holds") from None
        yield ", ".join(f"{key} {value}" for key, value in varied.items()), settings


def _point(group: str, named: tuple[str, PointSettings], settings: StudySettings, path: Path, traces: Path) -> Point:
    name, point = named
    if point.engines is not None and (point.prefill or point.decode):
        raise ConfigError(f"--study: {path}: point {group}: engines, and prefill with decode, exclude each other")
    policies = dict.fromkeys((settings.base, *settings.policies, *point.policies))
    plan = Plan(
        traces=[trace if ":" in trace else str(traces / trace) for trace in point.traces],
        policies=[_beside(path, policy) for policy in policies],
        seeds=tuple(range(1, settings.seeds + 1)),
        engines=point.engines or 8,
        prefill=point.prefill,
        decode=point.decode,
        profiles=(point.profile,) if isinstance(point.profile, str) else point.profile,
        slow=point.slow,
        kv_scale=point.kv_scale,
        deaths=tuple((at, engine) for engine, at in point.kill.items()),
        joins=point.join,
        speed=point.speed,
        skip=point.skip,
        limit=point.limit,
        conditions=Conditions(
            metrics_age_s=point.metrics_age,
            event_lag_s=point.event_lag,
            exact=not point.approximate,
            preemption=point.preemption,
            cache_answers=point.cache_answers,
            headers=slo_headers(Slo(*point.slo[0])) if point.send_slo else {},
        ),
        slos=tuple(Slo(*pair) for pair in point.slo),
        window=Window(point.begin / point.speed, point.until / point.speed),
    )
    return Point(group=group, name=name, plan=plan)


def _beside(study: Path, policy: str) -> str:
    """A policy file is named relative to the study."""
    plain = policy.rpartition("@")[0] or policy
    return str(study.parent / policy) if plain.endswith((".yaml", ".yml")) else policy


# Runs, and where they are kept


Progress = Callable[[Point, str, int, int, int], None]
"""Told point, policy, seed, how many runs are done and how many there are."""


def run_study(study: Study, results: Path, jobs: int, progress: Progress) -> list[Kept]:
    """Every run's outcome, from the results folder where it is there. Raises `ConfigError`."""
    make_folder("--results", results)
    asked = list(study.runs())
    missing = [run for run in asked if not _file(results, *run).exists()]
    done = len(asked) - len(missing)
    for point, policy, seed in _one_by_one(missing, results) if jobs == 1 else _at_once(missing, results, jobs):
        done += 1
        progress(point, policy, seed, done, len(asked))
    return [kept(_file(results, *run)) for run in asked]


Asked = tuple[Point, str, int]


def _one_by_one(missing: Sequence[Asked], results: Path) -> Iterator[Asked]:
    for run in missing:
        _run(*run, results)
        yield run


def _at_once(missing: Sequence[Asked], results: Path, jobs: int) -> Iterator[Asked]:
    with processes(jobs) as pool:
        futures = {pool.submit(_run, *run, results): run for run in missing}
        for future in as_completed(futures):
            future.result()
            yield futures[future]


def _run(point: Point, policy: str, seed: int, results: Path) -> None:
    plan = point.plan
    workload = load(plan)
    check_workload(plan, workload)
    run = run_one(plan, workload, policy, seed)
    check_run(plan, run)
    taken: dict[str, int] = {share.endpoint: 0 for share in run.shares}
    for result in run.results:
        if result.endpoint is not None and plan.window.counts(result):
            taken[result.endpoint] += 1
    found = Kept(
        group=point.group,
        point=point.name,
        policy=policy,
        seed=seed,
        summary=summarize(run, plan.slos, plan.window),
        shares=taken,
    )
    path = _file(results, point, policy, seed)
    whole = path.with_suffix(f".{os.getpid()}")
    whole.write_bytes(msgspec.json.encode(found))
    whole.replace(path)


def kept(path: Path) -> Kept:
    """Raises `ConfigError` where the file is none of a study's."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--results: {path} cannot be read ({error}): remove it") from None


def _file(results: Path, point: Point, policy: str, seed: int) -> Path:
    plan = msgspec.structs.replace(point.plan, policies=(), seeds=())
    told = msgspec.json.encode((point.group, point.name, plan, policy, seed, _source(policy), _text(policy)))
    name = "".join(c if c.isalnum() else "-" for c in f"{point.group} {point.name} {Path(policy).name}")
    return results / f"{name}-{seed}-{hashlib.sha256(told).hexdigest()[:16]}.json"


def _source(policy: str) -> str:
    """Digest of the code that can change a run: formulas of the field do not change with the product's plugins."""
    return digest(PRODUCT if find(policy).product else WORLD)


def _text(policy: str) -> str:
    path = Path(policy.rpartition("@")[0] or policy)
    return path.read_text(encoding="utf-8") if path.suffix in (".yaml", ".yml") else ""
