"""Study of scaling laws: each law's knob is found on days of one seed, then the laws are compared on days of others.

A study is a YAML file:

    tune: 2                       # seed of the days on which knobs are found
    seeds: [1]                    # of the days that are reported
    days: [diurnal, shift@3]      # on these the leanest knob that attains the objective is taken
    level: [bursts]               # on these the one that attains most within a number of engine-hours
    hours: [4.05, 5.05]           # which are these; none: those that `mine` takes
    pools: [aggregated, disaggregated]
    mine: planner                 # the law that the others are compared with, as it comes; its knob is found too
    mine_level: planner-bursts    # the same on level days
    bound: clairvoyant            # its leanest knob that attains the objective on the reported day itself
    laws:                         # knobs from the most generous to the leanest; for roles apart: {prefill:, decode:}
      hpa-concurrency: [8, 12, 16]

How a knob is found: `loadtest.replay.scaling.tuning`. Each run is a JSON file in the results folder under the digest of
all that it depends on (`loadtest.replay.digests`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from loadtest.replay.digests import WORLD, digest
from loadtest.replay.plan import Plan
from loadtest.replay.processes import processes
from loadtest.replay.results import Slo
from loadtest.replay.scaling.catalogue import MAKERS
from loadtest.replay.scaling.days import DAY, read_day
from loadtest.replay.scaling.run import Outcome, Scaling, read, run_law
from loadtest.replay.scaling.tuning import Search, last
from router import plain_yaml
from router.errors import ConfigError
from router.outputs import make_folder

Pool = Literal["aggregated", "disaggregated"]
Knobs = tuple[float, ...] | dict[str, tuple[float, ...]]


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tune: int
    seeds: tuple[int, ...]
    days: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    hours: tuple[float, ...] = ()
    pools: tuple[Pool, ...] = ("aggregated", "disaggregated")
    mine: str
    mine_level: str | None = None
    bound: str
    laws: dict[str, Knobs]
    attainment: float = 0.99
    slo: tuple[float, float] = (2.0, 0.05)
    startup_s: float = 90.0
    profile: str = "70b-tp4"
    policy: str = "default"

    def ours(self, scene: Scene) -> str:
        return self.mine_level if scene.level and self.mine_level is not None else self.mine

    def scenes(self) -> list[Scene]:
        budgets: tuple[float | None, ...] = self.hours or (None,)
        days = [(day, False, None) for day in self.days]
        level = [(day, True, budget) for day in self.level for budget in budgets]
        return [Scene(day, pool, is_level, budget) for day, is_level, budget in (*days, *level) for pool in self.pools]


class Scene(msgspec.Struct, frozen=True):
    day: str
    pool: Pool
    level: bool
    """Laws are compared at equal engine-hours, not at the objective."""
    budget: float | None = None
    """Engine-hours; None: those that ours takes as it comes."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one run."""

    day: str
    pool: Pool
    seed: int
    law: str
    attained: float
    engine_hours: float
    actions: int
    peak: int
    held: int
    failed: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One scene: by law, its runs on the reported days in the order of seeds."""

    scene: Scene
    mine: Sequence[Kept]
    bound: Sequence[Kept | None]
    """None where no knob attains."""
    others: Mapping[str, Sequence[Kept]]


Progress = Callable[[str], None]


def read_study(path: Path) -> Study:
    """Raises `ConfigError`."""
    try:
        study = msgspec.convert(plain_yaml.load(path.read_text(encoding="utf-8")), Study)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--study: {path}: {error}: docs/autoscaling.md tells what it holds") from None
    for day in (*study.days, *study.level):
        try:
            read_day(day)
        except ConfigError as error:
            raise ConfigError(f"--study: {path}: {error}") from None
    for law in (*study.laws, study.bound):
        if law not in MAKERS:
            raise ConfigError(f"--study: {path}: there is no law {law}: it is one of {', '.join(MAKERS)}")
    return study


def run_study(study: Study, results: Path, jobs: int, progress: Progress) -> list[Found]:
    """Raises `ConfigError`."""
    make_folder("--results", results)
    scenes = study.scenes()
    laws = {scene: [law for law in study.laws if law not in (study.bound, *_others(study, scene))] for scene in scenes}
    tasks = [(study, scene, law, results) for scene in scenes for law in (study.bound, AS_IT_COMES, *laws[scene])]
    done: dict[tuple[Scene, str], Sequence[Kept | None]] = {}

    def note(scene: Scene, law: str, kept: Sequence[Kept | None]) -> None:
        done[scene, law] = kept
        names = ", ".join(one.law if one is not None else f"no {law}" for one in kept)
        progress(f"{len(done)}/{len(tasks)}  {scene.pool}, {scene.day}: {names}")

    if jobs == 1:
        for task in tasks:
            note(*task[1:3], _task(*task))
    else:
        with processes(jobs) as pool:
            futures = {pool.submit(_task, *task): task for task in tasks}
            for future in as_completed(futures):
                note(*futures[future][1:3], future.result())
    return [
        Found(
            scene=scene,
            mine=_all(done[scene, AS_IT_COMES]),
            bound=done[scene, study.bound],
            others={law: _all(done[scene, law]) for law in laws[scene]},
        )
        for scene in scenes
    ]


AS_IT_COMES = "as it comes"
"""Instead of a law: ours, with the knob that it has by itself."""


def _others(study: Study, scene: Scene) -> list[str]:
    """Ours of the other kind of day: it is not asked here."""
    mine = {study.mine, study.mine_level} - {study.ours(scene)}
    return [law for law in study.laws if law in mine]


def _all(kept: Sequence[Kept | None]) -> list[Kept]:
    return [one for one in kept if one is not None]


def _task(study: Study, scene: Scene, law: str, results: Path) -> list[Kept | None]:
    runs = Runs(study, scene, results)
    if law == AS_IT_COMES:
        return [runs.one(study.ours(scene), seed) for seed in study.seeds]
    if law == study.bound:
        return [leanest(runs, law, seed) for seed in study.seeds]
    tuned = tune(runs, law)
    return [runs.one(tuned, seed) for seed in study.seeds]


class Scened(Protocol):
    """One scene's runs."""

    study: Study
    scene: Scene

    def one(self, law: str, seed: int) -> Kept: ...


class Runs:
    """Implements `Scened`: each run is made once and kept."""

    def __init__(self, study: Study, scene: Scene, results: Path) -> None:
        self.study, self.scene = study, scene
        self._results = results

    def one(self, law: str, seed: int) -> Kept:
        path = self._path(law, seed)
        if not path.exists():
            scaling = self._scaling(law, seed)
            workload, batch = read(scaling)
            found = self._kept(law, seed, run_law(scaling, workload, batch, law))
            whole = path.with_suffix(f".{os.getpid()}")
            whole.write_bytes(msgspec.json.encode(found))
            whole.replace(path)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"--results: {path} cannot be read ({error}): remove it") from None

    def _kept(self, law: str, seed: int, outcome: Outcome) -> Kept:
        return Kept(
            day=self.scene.day,
            pool=self.scene.pool,
            seed=seed,
            law=law,
            attained=outcome.attained,
            engine_hours=outcome.engine_hours,
            actions=outcome.actions,
            peak=outcome.peak,
            held=outcome.most_held,
            failed=outcome.failed,
        )

    def _scaling(self, law: str, seed: int) -> Scaling:
        study, apart = self.study, self.scene.pool == "disaggregated"
        plan = Plan(
            traces=[DAY + self.scene.day],
            policies=[study.policy],
            seeds=(seed,),
            prefill=int(apart),
            decode=int(apart),
            profiles=(study.profile,),
            slos=(Slo(*study.slo),),
        )
        return Scaling(plan=plan, laws=[law], startup_s=study.startup_s, disaggregated=apart)

    def _path(self, law: str, seed: int) -> Path:
        told = msgspec.json.encode((self._scaling(law, seed), seed, _source(law)))
        name = "".join(c if c.isalnum() else "-" for c in f"{self.scene.day} {self.scene.pool} {law}")
        return self._results / f"{name}-{seed}-{hashlib.sha256(told).hexdigest()[:16]}.json"


def tune(runs: Scened, law: str) -> str:
    """The law with its knob as it is best on the day that it is tuned on."""
    study, scene = runs.study, runs.scene
    budget = scene.budget
    if scene.level and budget is None:
        budget = runs.one(study.ours(scene), study.tune).engine_hours
    search = Search(law=law, run=lambda name: runs.one(name, study.tune), attainment=study.attainment, budget=budget)
    knobs = study.laws[law]
    if isinstance(knobs, tuple):
        # One over all roles where the law has no more, as ours.
        ours = law in (study.mine, study.mine_level)
        return search.alone(knobs) if ours or scene.pool == "aggregated" else search.apart(knobs, knobs)
    return (
        search.alone(knobs["both"]) if scene.pool == "aggregated" else search.apart(knobs["prefill"], knobs["decode"])
    )


def leanest(runs: Scened, law: str, seed: int) -> Kept | None:
    """The bound on a day, None where no knob attains."""
    knobs = runs.study.laws[law]
    assert isinstance(knobs, tuple)
    names = [f"{law}@{knob:g}" for knob in knobs]
    place = last(len(names), lambda place: runs.one(names[place], seed).attained >= runs.study.attainment)
    return None if place is None else runs.one(names[place], seed)


_ROUTED = (
    *WORLD,
    *(f"loadtest/replay/scaling/{name}.py" for name in ("base", "catalogue", "days", "references", "run")),
    "loadtest/replay/scaling/simulation.py",
    *(f"router/capacity/{name}.py" for name in ("engine_model", "flights", "laws", "pace", "recency", "rls")),
    *(f"router/capacity/{name}.py" for name in ("demand", "performance", "sizing", "variants")),
    "router/plugins",
    "router/scheduling",
)
_PLANNED = (*_ROUTED, "loadtest/replay/scaling/planned.py", "router/capacity")


def _source(law: str) -> str:
    """Digest of the code that can change a run: the field's laws do not change with the planner."""
    return digest(_PLANNED if law.startswith(("planner", "clairvoyant")) else _ROUTED)
