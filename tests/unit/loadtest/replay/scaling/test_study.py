"""Each law is tuned on other days than it is shown on, and a study's table says what it gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.replay.scaling.run import Outcome, Scaling
from loadtest.replay.scaling.study import (
    Found,
    Kept,
    Knobs,
    Pool,
    Scene,
    Study,
    leanest,
    read_study,
    run_study,
    tune,
)
from loadtest.replay.scaling.study_tables import markdown
from router.cli import run
from router.errors import ConfigError

ROOT = Path(__file__).parents[5]
LAWS: dict[str, Knobs] = {
    "clairvoyant": (1.2, 1.0, 0.9),
    "hpa-kv": (1.0, 2.0, 3.0, 4.0, 5.0),
    "static": {"both": (6.0, 5.0, 4.0), "prefill": (4.0, 3.0, 2.0), "decode": (5.0, 4.0, 3.0)},
}


def study(*, pools: tuple[Pool, ...] = ("aggregated", "disaggregated"), laws: dict[str, Knobs] = LAWS) -> Study:
    return Study(tune=2, seeds=(1,), days=("diurnal",), pools=pools, mine="planner", bound="clairvoyant", laws=laws)


def kept(law: str = "planner", seed: int = 1, attained: float = 1.0, hours: float = 4.0) -> Kept:
    return Kept(
        day="diurnal",
        pool="aggregated",
        seed=seed,
        law=law,
        attained=attained,
        engine_hours=hours,
        actions=7,
        peak=6,
        held=0,
        failed=0,
    )


class Told:
    """A scene in which a law attains less and takes less the greater its knobs are."""

    def __init__(self, scene: Scene, enough: float) -> None:
        self.study, self.scene, self.asked = study(), scene, set[int]()
        self._enough = enough

    def one(self, law: str, seed: int) -> Kept:
        self.asked.add(seed)
        if law == "planner":
            return kept(hours=4.5)
        knobs = [float(part) for part in law.partition("@")[2].split("/")]
        fewer = -1.0 if law.startswith(("static", "clairvoyant")) else 1.0
        lean = sum(fewer * knob for knob in knobs)
        return kept(law, seed, 1.0 if lean <= self._enough else 0.9, 8.0 - lean if fewer > 0 else -lean)


@pytest.mark.parametrize(("enough", "law"), [(3.0, "hpa-kv@3"), (9.0, "hpa-kv@5"), (0.0, "hpa-kv@1")])
def test_the_leanest_knob_that_attains_is_taken_from_the_day_of_tuning(enough: float, law: str) -> None:
    told = Told(Scene("diurnal", "aggregated", level=False), enough)
    assert tune(told, "hpa-kv") == law
    assert told.asked == {2}


def test_at_equal_engine_hours_the_most_generous_knob_that_takes_no_more_than_ours_is_taken() -> None:
    told = Told(Scene("bursts", "aggregated", level=True), 0.0)
    assert tune(told, "hpa-kv") == "hpa-kv@4"


def test_engine_hours_that_the_study_names_are_the_budget_of_all() -> None:
    told = Told(Scene("bursts", "aggregated", level=True, budget=5.5), 0.0)
    assert tune(told, "hpa-kv") == "hpa-kv@3"


def test_a_law_with_knobs_for_each_role_is_tuned_in_both() -> None:
    told = Told(Scene("diurnal", "disaggregated", level=False), -6.0)
    assert tune(told, "static") == "static@2/4"
    assert tune(Told(Scene("diurnal", "aggregated", level=False), -5.0), "static") == "static@5"


def test_the_bound_is_found_on_the_day_that_is_shown() -> None:
    told = Told(Scene("diurnal", "aggregated", level=False), -1.0)
    found = leanest(told, "clairvoyant", 1)
    assert found is not None
    assert found.law == "clairvoyant@1"
    assert told.asked == {1}
    assert leanest(Told(Scene("diurnal", "aggregated", level=False), -9.0), "clairvoyant", 1) is None


def test_a_run_is_made_once_and_the_table_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []

    def run_law(scaling: Scaling, workload: object, batch: object, name: str) -> Outcome:
        seed = scaling.plan.seeds[0]
        ran.append((name, seed))
        hours = {"planner": 4.0, "clairvoyant": 3.2}.get(name.partition("@")[0], 5.0)
        return Outcome(
            law=name,
            requests=10,
            attained=0.995,
            ttft_met=1.0,
            tpot_met=1.0,
            failed=0,
            batch_done=0,
            engine_hours=hours,
            actions=3,
            peak=6,
            most_held=0,
            steps=[],
        )

    monkeypatch.setattr("loadtest.replay.scaling.study.run_law", run_law)
    asked = study(pools=("aggregated",), laws={"clairvoyant": (1.0, 0.9), "hpa-kv": (0.1, 0.2), "planner": (0.99, 0.9)})
    lines: list[str] = []
    found = run_study(asked, tmp_path, 1, lines.append)
    assert sorted(ran) == [
        ("clairvoyant@0.9", 1),
        ("clairvoyant@1", 1),
        ("hpa-kv@0.1", 2),
        ("hpa-kv@0.2", 1),
        ("hpa-kv@0.2", 2),
        ("planner", 1),
        ("planner@0.9", 1),
        ("planner@0.9", 2),
        ("planner@0.99", 2),
    ]
    assert lines[-1].startswith("4/4")
    before = len(ran)
    assert run_study(asked, tmp_path, 1, lines.append) == found
    assert len(ran) == before
    table = markdown(found)
    assert "### diurnal, aggregated" in table
    assert "| `planner` | 99.50% | 4.00 | 1.25 | 1.00 | 3 | 6 |" in table
    assert "| `hpa-kv@0.2` | 99.50% | 5.00 | 1.56 | 1.25 | 3 | 6 |" in table


def test_a_day_without_a_bound_is_compared_with_ours_alone() -> None:
    scene = Scene("bursts", "aggregated", level=True)
    one = Found(scene=scene, mine=[kept()], bound=[None], others={"static": [kept("static@5", hours=5.0)]})
    table = markdown([one])
    assert "(at equal engine-hours)" in table
    assert "| `static@5` | 100.00% | 5.00 | - | 1.25 | 7 | 6 |" in table


def test_the_study_of_the_docs_can_be_read() -> None:
    read = read_study(ROOT / "docs" / "studies" / "scaling.yaml")
    assert read.tune not in read.seeds
    assert {scene.day for scene in read.scenes()} == {"diurnal", "shift", "bursts"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("laws: {static: [2]}\nseeds: 3", "expected|Expected"),
        (
            "tune: 2\nseeds: [1]\nmine: planner\nbound: clairvoyant\ndays: [monday]\nlaws: {}",
            "day:monday: there is no such day",
        ),
        ("tune: 2\nseeds: [1]\nmine: planner\nbound: clairvoyant\nlaws: {hpa: [1]}", "no law hpa"),
    ],
)
def test_a_study_that_cannot_be_run_is_told_so(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_study(path)
    assert run(["replay", "--study", str(path), "--results", str(tmp_path / "runs")]) == 2
