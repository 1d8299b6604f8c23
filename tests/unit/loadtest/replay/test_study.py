"""A study runs each point once, keeps what it ran, and tells ratios with an interval."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from loadtest.replay.study import Study, read_study, run_study
from loadtest.replay.study_tables import arranged, geometric, markdown, over
from loadtest.traces import generate, write_trace
from router.cli import run
from router.errors import ConfigError

STUDY = """
base: default
policies: [lmetric]
seeds: 2
points:
  two sizes: {traces: [agents.jsonl.gz], engines: [2, 3], speed: 2.0, skip: 0.5, from: 1}
  one more policy: {traces: [agents.jsonl.gz], engines: 2, policies: [round-robin], kill: {e1: 20}}
"""


def study(folder: Path, text: str = STUDY) -> Study:
    trace = folder / "agents.jsonl.gz"
    if not trace.exists():
        write_trace(trace, generate(1, sessions=2))
    path = folder / "study.yaml"
    path.write_text(text)
    return read_study(path, folder)


def test_a_list_is_one_point_for_each_value_and_the_base_is_in_all(tmp_path: Path) -> None:
    points = study(tmp_path).points
    assert [(point.group, point.name) for point in points] == [
        ("two sizes", "engines 2"),
        ("two sizes", "engines 3"),
        ("one more policy", ""),
    ]
    assert [list(point.plan.policies) for point in points] == [
        ["default", "lmetric"],
        ["default", "lmetric"],
        ["default", "lmetric", "round-robin"],
    ]
    assert points[0].plan.window.begin == 0.5
    assert points[0].plan.skip == 0.5
    assert points[2].plan.deaths == ((20.0, "e1"),)


def test_what_was_run_is_not_run_again_and_what_changed_is(tmp_path: Path) -> None:
    ran: list[str] = []

    def progress(_point: object, policy: str, seed: int, _done: int, _total: int) -> None:
        ran.append(f"{policy}/{seed}")

    results, small = tmp_path / "results", STUDY.replace("seeds: 2", "seeds: 1")
    first = run_study(study(tmp_path, small), results, 1, progress)
    assert len(first) == len(ran) == 7
    assert run_study(study(tmp_path, small), results, 1, progress) == first
    assert len(ran) == 7
    run_study(study(tmp_path, small.replace("[2, 3]", "[2, 4]")), results, 1, progress)
    assert ran[7:] == ["default/1", "lmetric/1"]


def test_the_command_prints_a_table_a_point_and_the_means_over_a_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path)
    command = ["replay", str(tmp_path), "--study", str(tmp_path / "study.yaml"), "--results", str(tmp_path / "runs")]
    assert run(command) == 0
    told = capsys.readouterr().out
    assert "### two sizes: engines 3" in told
    assert "### two sizes: geometric means over 2 points" in told
    assert "### all: geometric means over 3 points" in told
    assert "| round-robin |" in told
    assert "### one more policy: geometric" not in told


def test_ratios_are_paired_by_seed(tmp_path: Path) -> None:
    kept = run_study(study(tmp_path), tmp_path / "results", 1, lambda *_: None)
    table = arranged(kept)
    same = over(table, list(table), "default", "default", lambda summary: summary.ttft.mean)
    assert same is not None
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    assert over(table, list(table), "round-robin", "default", lambda summary: summary.ttft.mean) is None
    assert "[" in markdown(kept, "default")


def test_at_each_point_the_base_is_measured_by_whoever_is_best_there_and_bounds_are_nobody(tmp_path: Path) -> None:
    asked = STUDY.replace("seeds: 2", "seeds: 1").replace("[lmetric]", "[lmetric, random, pooled]")
    kept = run_study(study(tmp_path, asked), tmp_path / "results", 1, lambda *_: None)
    table = arranged(kept)
    _, _, best = markdown(kept, "default").partition("### default over the best other policy at each point")
    rows = [line.split(" | ") for line in best.splitlines() if line.startswith("| ") and "TTFT" not in line]
    assert len(rows) == len(table) == 3
    for row, (point, policies) in zip(rows, table.items(), strict=True):
        assert row[0] == f"| {point}"
        means = {policy: runs[0].ttft.mean for policy, runs in policies.items() if policy not in ("default", "pooled")}
        winner = min(means, key=lambda policy: means[policy])
        assert row[1] == f"{policies['default'][0].ttft.mean / means[winner]:.3f} {winner}"


def test_the_interval_is_students_and_one_seed_has_none() -> None:
    assert geometric([0.0]).high == math.inf
    assert geometric([0.1, 0.1, 0.1]).clear
    wide = geometric([0.0, 0.2])
    assert wide.value == pytest.approx(math.exp(0.1))
    assert math.log(wide.high) == pytest.approx(0.1 + 12.71 * 0.1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (STUDY.replace("speed", "sped"), "sped"),
        (STUDY.replace("[lmetric]", "[lmetrik]"), "lmetric"),
        ("points: [", "mend"),
        ("seeds: 3", "policies"),
        (STUDY.replace("kill: {e1: 20}", "kill: {e7: 20}"), "point one more policy: there is no engine e7"),
        (STUDY.replace("kill: {e1: 20}", "slow: {e1: 1e-300}"), "factor from 0.001 to 1000"),
        (STUDY.replace("engines: 2,", "engines: 2, prefill: 1, decode: 1,"), "exclude each other"),
        (STUDY.replace("speed: 2.0", "speed: 0"), ">= 0.001"),
        (STUDY.replace("from: 1", "from: 1, until: 1"), "--from 1 is not before --until 1"),
        (STUDY.replace("seeds: 2", "seeds: 0"), ">= 1"),
    ],
)
def test_a_wrong_study_is_told_with_the_mend(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        study(tmp_path, text)


def test_a_point_that_counts_nothing_is_no_row_of_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path, STUDY.replace("from: 1", "from: 99999"))
    command = ["replay", str(tmp_path), "--study", str(tmp_path / "study.yaml"), "--results", str(tmp_path / "runs")]
    assert run(command) == 2
    assert "--from 99999: no request counts" in capsys.readouterr().err


def test_results_that_cannot_be_kept_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path)
    path = tmp_path / "study.yaml"
    assert run(["replay", str(tmp_path), "--study", str(path), "--results", str(path)]) == 2
    assert f"--results {path} cannot be made" in capsys.readouterr().err


DOCS = Path(__file__).parents[4] / "docs"
SHOWN = re.findall(r"docs/studies/([a-z-]+\.yaml)", (DOCS / "scheduling.md").read_text())


@pytest.mark.parametrize("name", sorted({*SHOWN}))
def test_the_studies_behind_the_docs_can_be_run(name: str, tmp_path: Path) -> None:
    asked = read_study(DOCS / "studies" / name, tmp_path)
    assert asked.base == "default"
    assert all(len(point.plan.policies) > 1 for point in asked.points)


def test_without_a_trace_or_a_study_there_is_nothing_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay"]) == 2
    assert "name a trace" in capsys.readouterr().err
