"""`kvrouter plan` of a recorded day takes what an operator is bound to, and its page says what makes it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.cli import run


def test_a_page_names_every_flag_that_it_depends_on(tmp_path: Path) -> None:
    trace, page, told = tmp_path / "day.csv", tmp_path / "day.html", tmp_path / "day.json"
    trace.write_text("arrival_s,input_length,output_length\n" + "\n".join(f"{n / 5},2000,150" for n in range(600)))
    flags = ["--form=aggregated", "--min=2", "--max=3", "--slice=60", "--survive-failures", "--block-size=32"]
    assert run(["plan", f"--trace={trace}", *flags, f"--html={page}", f"--json={told}"]) == 0
    text = page.read_text()
    assert all(flag in text for flag in flags)
    slices = json.loads(told.read_text())["slices"]
    assert all(2 <= count <= 3 for one in slices for count in one["engines"].values())


@pytest.mark.parametrize("flag", ["--quota=h100", "--form=split", "--quota=tpu=3"])
def test_a_flag_without_a_sense_is_one_sentence(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--trace=day:steady", flag]) == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--variants=v.yaml", "--slice=900", "--survive-failures", "--html=day.html", "--min=1"]
)
def test_what_is_for_a_recorded_day_is_refused_of_a_running_router(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "http://127.0.0.1:1", flag]) == 2
    said = capsys.readouterr().err
    assert flag.partition("=")[0] in said
    assert "--trace" in said


def test_a_router_and_a_recorded_day_are_not_asked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "http://127.0.0.1:1", "--trace=day:steady"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_a_trace_with_a_time_far_off_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("arrival_s,input_length,output_length\n0,2000,150\n60,2000,150\n100000000,2000,150\n")
    assert run(["plan", f"--trace={trace}"]) == 2
    said = capsys.readouterr().err
    assert "from 60 s to 1e+08 s" in said
    assert "--slice" in said
