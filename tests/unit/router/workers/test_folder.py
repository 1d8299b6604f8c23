from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.workers.folder import meeting_place

OWNER = """
import sys
from router.workers.folder import meeting_place
with meeting_place([sys.argv[1]]) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def owner(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder below `root`, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    process.communicate()


def test_it_is_there_for_its_owner_alone_and_gone_afterwards(short_path: Path) -> None:
    with meeting_place([str(short_path)]) as folder:
        assert folder.parent == short_path
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "valkey.conf").write_text("port 0")
    assert list(short_path.iterdir()) == []


def test_what_a_killed_owner_left_is_taken_away_by_the_next(short_path: Path) -> None:
    process, left = owner(short_path)
    (left / "valkey.conf").write_text("port 0")
    end(process, signal.SIGKILL)
    assert left.exists()
    with meeting_place([str(short_path)]) as folder:
        assert list(short_path.iterdir()) == [folder]


def test_what_belongs_to_one_that_lives_stays(short_path: Path) -> None:
    process, theirs = owner(short_path)
    with meeting_place([str(short_path)]) as folder:
        assert sorted(short_path.iterdir()) == sorted([folder, theirs])
    assert theirs.exists()
    end(process, signal.SIGKILL)


def test_what_has_no_owner_or_is_no_folder_stays(short_path: Path) -> None:
    (short_path / "kvrouter-bare").mkdir()
    (short_path / "kvrouter-file").write_text("mine")
    elsewhere = short_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.lock").write_text("")
    (short_path / "kvrouter-link").symlink_to(elsewhere)
    with meeting_place([str(short_path)]):
        pass
    assert {path.name for path in short_path.iterdir()} == {
        "kvrouter-bare",
        "kvrouter-file",
        "kvrouter-link",
        "elsewhere",
    }
    assert (elsewhere / "owner.lock").exists()


@pytest.mark.parametrize("missing", [False, True])
def test_where_a_socket_would_not_fit_or_nothing_can_be_made_the_next_place_is_taken(
    missing: bool, tmp_path: Path
) -> None:
    bad = tmp_path / "nowhere" if missing else tmp_path / ("x" * 110)
    if not missing:
        bad.mkdir()
    with meeting_place([str(bad), "/tmp"]) as folder, socket.socket(socket.AF_UNIX) as bound:
        assert folder.parent == Path("/tmp")
        bound.bind(str(folder / "worker255.sock"))


def test_where_there_is_none_the_mend_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"nowhere can be written .* let TMPDIR name one"),
        meeting_place([str(tmp_path / "nowhere")]),
    ):
        pass
