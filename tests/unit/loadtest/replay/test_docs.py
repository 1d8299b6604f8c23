"""What docs/replay.md tells people to type is what the command takes, and what it names is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from loadtest.replay.cli import app
from loadtest.replay.inputs import read_workload
from loadtest.replay.policies.catalogue import CATALOGUE
from loadtest.traces import generate, write_trace
from router.cli import run

PAGE = (Path(__file__).parents[4] / "docs" / "replay.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvrouter (replay .+)$", PAGE, re.MULTILINE)
_HEAD = {"kvrouter_request_log": 1, "block_size": 16}


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "conversation.jsonl.gz", generate(1, sessions=3))
    lines = [_HEAD] + [{"timestamp": n, "input_length": 40, "output_length": 4, "hash_ids": [[n, 2]]} for n in range(9)]
    (tmp_path / "requests.log").write_text("\n".join(map(json.dumps, lines)))
    assert run(shlex.split(command)) == 0
    assert "TTFT s" in capsys.readouterr().out


def test_every_flag_named_is_one_and_every_one_is_named() -> None:
    flags = {flag for parameter in get_command(app).params for flag in (*parameter.opts, *parameter.secondary_opts)}
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    of_others = set(re.findall(r"kvrouter demo (--[a-z-]+)", PAGE))
    assert named - of_others <= flags
    told_elsewhere = {"--startup", "--preempt", "--no-preempt"}
    assert {flag for flag in flags if flag.startswith("--")} - named <= told_elsewhere | {"--help", "--jitter"}


def test_the_table_of_policies_is_the_catalogue() -> None:
    table = PAGE.partition("\n## Policies\n")[2].partition("\nThe field's formulas")[0]
    names = [name for line in table.splitlines() if line.startswith("| `") for name in line.split("|")[1].split(",")]
    assert sorted(name.strip(" `") for name in names) == sorted(CATALOGUE)


def test_the_csv_shown_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)[0])
    assert [(r.at, r.prompt, r.output) for r in read_workload(path).requests] == [(0.0, 1200, 150), (0.4, 300, 80)]
