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
