from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from loadtest.traces import generate, write_trace
from router.cli import run

_DECIDER = "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 1024}}"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "agents.jsonl.gz"
    write_trace(path, generate(1, sessions=12))
    return path


def test_policies_are_compared_in_tables(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(trace), "--policy", "default", "--policy", "round-robin", "--policy", "pooled"]) == 0
    told = capsys.readouterr().out
    assert "TTFT s" in told
    assert re.search(r"^round-robin .* 1\.000 +- *$", told, re.MULTILINE)
    assert re.search(r"^pooled .* 0\.000 +- *$", told, re.MULTILINE)


def test_the_same_seeds_give_the_same_figures_in_one_process_and_in_two(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["replay", str(trace), "--policy", "lmetric", "--policy", "random", "--seeds", "2", "--json", "-"]
    told = []
    for jobs in ("1", "2"):
        assert run([*command, "--jobs", jobs, "--engines", "3"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        told.append([(row["policy"], row["summary"]["ttft"], row["summary"]["e2e"]) for row in rows])
    assert told[0] == told[1]
    assert told[0][0] != told[0][1]


def test_a_configuration_is_compared_under_its_path_and_reasons_are_shown(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("scheduling: {decider: prefix-based-pd-decider, plugins: [" + _DECIDER + "]}\n")
    command = ["replay", str(trace), "--policy", str(path), "--policy", "lmetric", "--baseline", str(path)]
    assert run([*command, "--prefill", "1", "--decode", "1"]) == 0
    told = capsys.readouterr().out
    assert f"against {path}" in told
    assert "pd-cached" in told


def test_the_page_holds_everything_and_fetches_nothing(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("pygal")
    page = tmp_path / "report.html"
    command = ["replay", str(trace), "--policy", "default", "--policy", "random", "--windows", "1", "--html", str(page)]
    assert run(command) == 0
    text = page.read_text()
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\"'<> ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert len(re.findall(r'class="pygal-chart"', text)) == 8
    assert f"kvrouter replay {trace}" in text


def test_without_the_plots_library_nothing_is_replayed_in_vain(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pygal", None)
    monkeypatch.delitem(sys.modules, "loadtest.replay.charts", raising=False)
    assert run(["replay", str(trace), "--html", "report.html"]) == 2
    told = capsys.readouterr()
    assert "--html needs pygal" in told.err
    assert told.out == ""


def test_conditions_are_taken(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {}
    for name, flags in {
        "plain": [],
        "half": ["--speed", "0.5"],
        "slow": ["--slow", "e0=0.1", "--slow", "e1=0.1"],
        "answers": ["--cache-answers"],
        "apart": ["--prefill", "1", "--decode", "1"],
        "far": ["--prefill", "1", "--decode", "1", "--transfer", "500,5"],
        "small": ["--engine-profile", "8b", "--kv-scale", "0.05", "--preemption"],
        "dying": ["--kill", "e1@5", "--join", "6", "--metrics-age", "2", "--event-lag", "1"],
        "guessing": ["--approximate", "--open-loop", "--limit", "20", "--from", "1", "--until", "60"],
        "later": ["--skip", "2"],
    }.items():
        assert run(["replay", str(trace), "--policy", "lmetric", "--engines", "2", "--json", "-", *flags]) == 0
        figures[name] = json.loads(capsys.readouterr().out)["rows"][0]["summary"]
    assert all(figure["requests"] > 10 for figure in figures.values())
    assert figures["slow"]["ttft"]["mean"] > 3 * figures["plain"]["ttft"]["mean"]
    assert figures["answers"]["hit_rate"] > figures["plain"]["hit_rate"]
    assert len({json.dumps(figure["e2e"]) for figure in figures.values()}) == len(figures)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--policy", "nosuch"], "no policy 'nosuch'"),
        (["synthetic:chaos"], "synthetic:chaos: there is no such workload"),
        (["--transfer", "5"], "--transfer 5: write it like 5,5"),
        (["--baseline", "llm-d", "--policy", "random"], "--baseline llm-d is not replayed"),
        (["--prefill", "2"], "--prefill and --decode go together"),
        (["--slow", "e9=0.5"], "no engine e9"),
        (["--kill", "e1"], "--kill e1: write it like e2@600"),
        (["--slo", "fast"], "--slo fast: write it like 2,0.05"),
        (["--engine-profile", "h100"], "no profile 'h100'"),
        (["--html", "/nowhere/x.html", "--limit", "3"], "/nowhere/x.html cannot be written"),
    ],
)
def test_bad_input_is_a_sentence(
    trace: Path, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(trace), "--engines", "2", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_a_trace_that_is_none_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
