from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from loadtest.replay.policies.catalogue import CATALOGUE
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
    pytest.importorskip("loadtest.replay.charts")
    page = tmp_path / "report.html"
    command = [
        "replay",
        str(trace),
        "--policy",
        "default",
        "--policy",
        "random",
        "--windows",
        "1",
        "--window-size",
        "9",
    ]
    assert run([*command, "--html", str(page)]) == 0
    text = page.read_text()
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\"'<> ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert len(re.findall(r'class="pygal-chart"', text)) == 8
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names)) >= 8
    units = re.findall(r'class="title">([^<]+)</text>', text)
    assert {"s or less (logarithmic)", "% of requests", "arrival, s", "% of prompt tokens", "engine"} <= set(units)
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
    apart = ["--prefill", "1", "--decode", "1"]
    for name, flags in {
        "plain": [],
        "half": ["--speed", "0.5"],
        "slow": ["--slow", "e0=0.1", "--slow", "e1=0.1"],
        "answers": ["--cache-answers"],
        "apart": apart,
        "far": [*apart, "--transfer", "500,5"],
        "small": ["--engine-profile", "8b", "--kv-scale", "0.05", "--preemption"],
        "dying": ["--kill", "e1@5", "--join", "6", "--metrics-age", "2", "--event-lag", "1"],
        "guessing": ["--approximate", "--open-loop", "--limit", "20", "--from", "1", "--until", "60"],
        "later": ["--skip", "2"],
    }.items():
        engines = [] if flags[:4] == apart else ["--engines", "2"]
        assert run(["replay", str(trace), "--policy", "lmetric", *engines, "--json", "-", *flags]) == 0
        figures[name] = json.loads(capsys.readouterr().out)["rows"][0]["summary"]
    assert all(figure["requests"] > 10 for figure in figures.values())
    assert figures["slow"]["ttft"]["mean"] > 3 * figures["plain"]["ttft"]["mean"]
    assert figures["answers"]["hit_rate"] > figures["plain"]["hit_rate"]
    assert len({json.dumps(figure["e2e"]) for figure in figures.values()}) == len(figures)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--policy", "nosuch"], "no policy 'nosuch'"),
        (["--policy", "random", "--policy", "random"], "--policy random is given twice"),
        (["--seed", "3", "--seed", "4", "--seed", "3"], "--seed 3 is given twice"),
        (["--slo", "1,1", "--slo", "1,1"], "--slo 1,1 is given twice"),
        (["--transfer", "9,9"], "--transfer is the time of a hand-off: give --prefill and --decode too"),
        (["--event-lag", "1", "--approximate"], "--event-lag says how late KV events come, and with --approximate"),
        (["--policy", "all", "--policy", "nope"], "no policy 'nope'"),
        (["--policy", "all", "--scaling", "static"], "no policy 'all'"),
        (["--policy", "default,lmetric"], "no policy 'default,lmetric': give --policy once for each"),
        (["synthetic:chaos"], "synthetic:chaos: there is no such workload"),
        (["day:shift"], "day:shift: days are for fleets that grow and shrink: give --scaling too"),
        (["--prefill", "1", "--decode", "1", "--transfer", "5"], "--transfer 5: write it like 5,5"),
        (["--baseline", "llm-d", "--policy", "random"], "--baseline llm-d is not replayed"),
        (["--prefill", "2"], "--prefill and --decode go together"),
        (["--engines", "2", "--prefill", "1", "--decode", "1"], "--engines and --prefill with --decode exclude each"),
        (["--slow", "e9=0.5"], "no engine e9"),
        (["--slow", "e1=1e-300"], "--slow e1=1e-300: give a factor from 0.001 to 1000"),
        (["--slow", "e1=0.5", "--slow", "e1=2"], "--slow names e1 twice"),
        (["--kill", "e1"], "--kill e1: write it like e2@600"),
        (["--kill", "e1@5", "--kill", "e1@9"], "--kill names e1 twice"),
        (["--kill", "e8@5", "--join", "9"], "--kill e8@5: it joins at 9 s"),
        (["--join", "-5"], "'--join': it must be at least 0, not -5"),
        (["--join", "soon"], "'--join': it must be a number, not soon"),
        (["--engines", "0"], "'--engines': it must be at least 1, not 0"),
        (["--windows", "1", "--limit", "20"], "--windows 1: a window has 40 requests, and 20 count"),
        (["--join", "inf"], "--join: give a finite number"),
        (["--from", "inf"], "--from: give a finite number"),
        (["--slo", "fast"], "--slo fast: write it like 2,0.05"),
        (["--engine-profile", "h100"], "no profile 'h100'"),
        (["--from", "9", "--until", "3"], "--from 9 is not before --until 3"),
        (["--from", "100000"], "--from 100000: no request counts: they arrive in the trace's seconds 0 to "),
        (["--skip", "100000"], "--skip 100000: agents has no request that late"),
        (["--kv-scale", "0.001"], "no engine has room for any request"),
        (["--windows", "2", "--prefill", "1", "--decode", "1"], "--windows are searched on engines that serve whole"),
        (["--windows", "2", "--policy", "pooled"], "--windows say how far a policy is from the best"),
        (["--window-size", "20"], "--window-size says how long the windows of --windows are"),
        (["--seed", "3", "--seeds", "2"], "--seed and --seeds exclude each other"),
        (["--results", "here"], "--results is where a study keeps its runs"),
        (["--study", "s.yaml", "--engines", "2"], "--engines is not looked at with --study"),
        (["more", "--study", "s.yaml"], "--study takes one folder"),
        (["--policy", "default@7200"], "default@7200: '7200' is no age of 0 to 3600 s"),
        (["--startup", "9"], "--startup says how fleets grow"),
        (["--scaling", "planner", "--engines", "2"], "--engines is not looked at with --scaling"),
        (["--scaling", "planner", "--policy", "default", "--policy", "random"], "under one --policy: give it once"),
        (["--block-size", "100"], "--block-size 100 does not agree with most lines"),
    ],
)
def test_bad_input_is_a_sentence(
    trace: Path, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(trace), *flags]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.startswith("kvrouter: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--html", "/nowhere/x.html"], "--html /nowhere/x.html cannot be written (no such folder)"),
        (["--json", "/nowhere/x.json"], "--json /nowhere/x.json cannot be written (no such folder)"),
        (["--json", "."], "--json . cannot be written (is a directory)"),
        (["--html", "-"], "--html -: a page is written to a file"),
        (["--json", "same", "--html", "same"], "--json and --html both name same"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_trace_is_even_read(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "no-such-trace.jsonl", *flags]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_no_figures_are_written_over_what_the_replay_reads(
    trace: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, profile = tmp_path / "mine.yaml", tmp_path / "engines.yaml"
    policy.write_text("scheduling: {}\n")
    profile.write_text(f"mine: {PROFILE}\n")
    command = ["replay", str(trace), "--policy", f"{policy}@2", "--engine-profile", f"{profile}:mine", option]
    for read in (trace, policy, profile):
        before = read.read_bytes()
        assert run([*command, str(read)]) == 2
        assert f"{option} {read} would overwrite a file that is read" in capsys.readouterr().err
        assert read.read_bytes() == before


def test_a_page_is_made_of_two_requests_that_took_almost_the_same_time(tmp_path: Path) -> None:
    pytest.importorskip("loadtest.replay.charts")
    path, page = tmp_path / "tiny.csv", tmp_path / "report.html"
    path.write_text("arrival_s,input_length,output_length\n0.0,9000,11\n10.0,9000,11\n")
    assert run(["replay", str(path), "--policy", "default", "--html", str(page)]) == 0
    assert "</html>" in page.read_text()


@pytest.mark.parametrize("made", [["synthetic:agents"], ["day:steady", "--scaling", "static"]])
def test_what_is_made_here_has_its_own_block_size(made: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *made, "--block-size", "16"]) == 2
    assert f"--block-size: {made[0]} has its own, leave it out" in capsys.readouterr().err


def test_what_came_too_late_to_make_a_difference_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_length,output_length\n0,100,5\n10,100,5\n")
    command = ["replay", str(path), "--policy", "default", "--no-jitter"]
    assert run([*command, "--kill", "e0@500", "--join", "600", "--kill", "e1@5", "--join", "6"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "kvrouter: --join 600: the last request came at 10 s, before that engine",
        "kvrouter: --kill e0@500: all was answered by 10 s",
    ]


def test_a_fleet_is_not_scaled_through_months_without_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("arrival_s,input_length,output_length\n0,100,5\n1e7,100,5\n")
    assert run(["replay", str(path), "--scaling", "static"]) == 2
    assert "gap: nothing arrives between second 0 and second 1000000" in capsys.readouterr().err


def test_turns_that_wait_are_counted_by_when_they_came(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "turns.jsonl"
    first = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1], "session": 1}
    path.write_text(f"{json.dumps(first)}\n{json.dumps(first | {'think': 30})}\n")
    assert run(["replay", str(path), "--policy", "default", "--from", "20", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["summary"]["requests"] == 1
    assert run(["replay", str(path), "--policy", "default", "--from", "90"]) == 2
    assert "--from 90: no request counts: they arrive in the trace's seconds 0 to 30" in capsys.readouterr().err


def test_from_and_until_are_seconds_of_the_trace_whatever_the_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "even.csv"
    path.write_text("arrival_s,input_length,output_length\n" + "".join(f"{n},100,5\n" for n in range(100)))
    for speed in ("1", "4"):
        command = ["replay", str(path), "--policy", "default", "--no-jitter", "--json", "-", "--speed", speed]
        assert run([*command, "--from", "20", "--until", "50"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["rows"][0]["summary"]["requests"] == 30
        assert report["situation"].startswith(f"100 requests in {99 / float(speed):.4g} s")
        assert report["situation"].endswith(", of which 30 count; 8 engines of 70b-tp4; blocks of 512 tokens; 1 seed")


def test_requests_that_failed_are_counted_by_why_and_nothing_is_called_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "t.csv", tmp_path / "report.html"
    rows = ["0,100,5000", "1,600000,5", "2,60000,5", "9,100,5"]
    path.write_text("arrival_s,input_length,output_length\n" + "\n".join(rows) + "\n")
    command = ["replay", str(path), "--engines", "1", "--policy", "default", "--policy", "random"]
    assert run([*command, "--no-jitter", "--kill", "e0@2.5", "--html", str(page)]) == 1
    told = capsys.readouterr().out
    assert "failed requests, all seeds, by why" in told
    words = " +".join(["longer than the KV space", "cut off, the engine died", "no engine to choose", "no engine left"])
    assert re.search(words, told)
    assert re.search(r"^random +1 +1 +1 +1$", told, re.MULTILINE)
    for text in (told, page.read_text()):
        assert not re.search(r"\bnan\b", text)
    assert "cut off, the engine died" in page.read_text()


def test_all_policies_are_compared_with_one_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, mine = tmp_path / "t.csv", tmp_path / "mine.yaml"
    path.write_text("arrival_s,input_length,output_length\n0,100,5\n1,100,5\n")
    mine.write_text("scheduling: {}\n")
    command = ["replay", str(path), "--policy", str(mine), "--policy", "all", "--json", "-"]
    assert run(command) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == [str(mine), *CATALOGUE]


def test_windows_are_shown_of_one_policy_too(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["replay", str(trace), "--policy", "random", "--engines", "2", "--windows", "1", "--window-size", "9"]) == 0
    )
    told = capsys.readouterr().out
    assert "/ clairvoyant" in told
    assert re.search(r"^random .* [1-9]\.\d{3}$", told, re.MULTILINE)


def test_figures_on_standard_output_do_not_keep_the_page_from_being_written(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("loadtest.replay.charts")
    page = tmp_path / "report.html"
    assert run(["replay", str(trace), "--policy", "random", "--json", "-", "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]
    assert "</html>" in page.read_text()


PROFILE = (
    "{prefill_tokens_per_s: 9000, attention_s: 1e-9, step_s: 0.01, per_seq_s: 0, per_kv_token_s: 0, "
    "kv_tokens: 400000, chunk: 8192, max_seqs: 256}"
)


def test_one_of_several_profiles_in_a_file_is_named_behind_a_colon(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "engines.yaml"
    file.write_text(f"small: {PROFILE}\nlarge: {PROFILE.replace('9000', '90000')}\n")
    means = []
    for name in ("small", "large"):
        command = ["replay", str(trace), "--policy", "random", "--engine-profile", f"{file}:{name}", "--json", "-"]
        assert run(command) == 0
        means.append(json.loads(capsys.readouterr().out)["rows"][0]["summary"]["ttft"]["mean"])
    assert means[0] > 5 * means[1]


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        (f"a: {PROFILE}\nb: {PROFILE}\n", "", "holds 2 profiles; say which, as {file}:NAME with one of a, b"),
        (f"a: {PROFILE}\nb: {PROFILE}\n", ":c", "has no profile 'c'; use one of a, b"),
        (f"a: {PROFILE.replace('8192', '256')}\n", "", "a: chunk (256) leaves no token for prompts beside max_seqs"),
        (f"a: {PROFILE.replace('0.01', '1e300')}\n", "", "a: step_s: 1e+300 is no use; give 0 to 1000"),
        (
            f"a: {PROFILE.replace('9000', '1e12')}\n",
            "",
            "a: prefill_tokens_per_s: 1e+12 is no use; give 0.001 to 1e+09",
        ),
        ("a: {chunk: 8192}\n", "", "a: Object missing required field"),
        (PROFILE, "", "is not a mapping of a name to an engine's constants"),
    ],
)
def test_a_profile_file_of_no_use_is_a_sentence(
    trace: Path, tmp_path: Path, text: str, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "engines.yaml"
    file.write_text(text)
    assert run(["replay", str(trace), "--engine-profile", f"{file}{name}"]) == 2
    assert sentence.format(file=file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "scheduling: {profiles: {decode: {scorers: [{plugin: x, weight: -1}]}}}",
            "weight (mine.yaml line 1) must be at",
        ),
        ("scheduling:\n  profles: {}\n", "scheduling.profles (mine.yaml line 2) is not a setting: did you mean"),
        ("scheduling: {decider: nosuch}", "nosuch"),
        ("scheduling: 7", "must be a mapping of keys to values"),
        ("scheduling: {}\nscheduling: {}", "scheduling stands twice in line 2"),
        ("kind: EndpointPickerConfig", "apiVersion"),
    ],
)
def test_a_policy_file_of_no_use_is_a_sentence_of_the_routers_own(
    trace: Path,
    tmp_path: Path,
    text: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    assert run(["replay", str(trace), "--policy", "mine.yaml"]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert "mine.yaml" in told
    assert "Input should" not in told


def test_a_trace_that_is_none_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
