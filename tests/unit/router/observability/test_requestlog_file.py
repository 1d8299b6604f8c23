"""Whole lines are appended, wherever the path leads now, and half a line is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.observability.requestlog_file import LogFile


def opened(path: Path) -> LogFile:
    file = LogFile(path)
    assert file.follow()
    return file


def test_lines_are_appended_behind_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    file = opened(path)
    assert file.append([b"a", b"b"]) == (2, None)
    assert not file.follow()
    assert path.read_bytes() == b"old\na\nb\n"
    file.close()


def test_a_path_that_leads_elsewhere_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path)
    file.append([b"a"])
    path.rename(tmp_path / "log.1")
    assert file.follow()
    file.append([b"b"])
    assert path.read_bytes() == b"b\n"
    path.write_bytes(b"")
    assert file.follow()
    file.close()


def test_half_a_line_is_noticed_whoever_left_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path)
    assert not file.torn()
    path.write_bytes(b"half")
    assert file.torn()
    file.append([b"", b"whole"])
    assert not file.torn()
    assert path.read_bytes() == b"half\nwhole\n"
    file.close()


def test_what_cannot_be_opened_is_said_by_who_asks(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        LogFile(tmp_path / "none" / "log").follow()
