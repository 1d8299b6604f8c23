"""Files that a command will write are tried before its work, and nothing is made by trying."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router import outputs
from router.errors import ConfigError


def test_a_file_in_a_folder_of_ones_own_is_good_and_not_made_yet(tmp_path: Path) -> None:
    outputs.check(tmp_path / "a.json", tmp_path / "b.html")
    outputs.check(outputs.STANDARD_OUTPUT, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "why"), [("none/a.json", "no such folder"), (".", "is a directory"), ("a\0b", "no path")]
)
def test_what_could_not_be_written_says_why(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"--json .* cannot be written \({why}\)"):
        outputs.check(tmp_path / name, None)


def test_what_is_read_is_not_written_by_whatever_name(tmp_path: Path) -> None:
    read, link = tmp_path / "a.jsonl", tmp_path / "link"
    read.write_text("{}")
    link.symlink_to(read)
    for path in (read, link, tmp_path / ".." / tmp_path.name / "a.jsonl"):
        with pytest.raises(ConfigError, match=r"--json .* would overwrite a file that is read: name another one"):
            outputs.check(path, None, ["day:steady", read])
        with pytest.raises(ConfigError, match=r"--html .* would overwrite a file that is read"):
            outputs.check(outputs.STANDARD_OUTPUT, path, [str(read)])
    outputs.check(tmp_path / "b.json", tmp_path / "b.html", [read])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert outputs.trouble(tmp_path / "a") == "permission denied"


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--results .* cannot be made"):
        outputs.make_folder("--results", tmp_path / "file" / "runs")


def test_a_remark_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    outputs.remark("a word")
    assert capsys.readouterr() == ("", "kvrouter: a word\n")
