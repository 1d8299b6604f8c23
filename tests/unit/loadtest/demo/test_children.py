"""Processes on a leash: they end when asked, and when their parent is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.demo.children import Child, ChildFailed, plain_environment

ROOT = Path(__file__).parents[4]
SECONDS = 30.0
"""Far more than anything here takes; a test that reaches it fails."""

SLEEPER = """\
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    (tmp_path / "stubborn.py").write_text(
        f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPER}", encoding="utf-8"
    )
    (tmp_path / "broken.py").write_text("print('about to fail')\nraise SystemExit(3)\n", encoding="utf-8")
    return {**plain_environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def written(path: Path) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") != ""


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    # Nobody may be there to collect an orphan's exit code.
    return state == "Z"


@pytest.mark.parametrize("module", ["sleeper", "stubborn"])
def test_stop_ends_it_whether_it_listens_or_not(environ: dict[str, str], tmp_path: Path, module: str) -> None:
    started = tmp_path / "pid"
    child = Child("child", [module, str(started)], environ, tmp_path)
    try:
        until(lambda: written(started))
        child.check()
    finally:
        child.stop(1.0)
    assert gone(int(started.read_text(encoding="utf-8")))


def test_an_end_of_its_own_is_told_with_what_it_said_last(environ: dict[str, str], tmp_path: Path) -> None:
    child = Child("child", ["broken"], environ, tmp_path)

    def ended() -> bool:
        try:
            child.check()
        except ChildFailed as failure:
            assert str(failure) == "the child ended by itself (exit code 3); it said last:\nabout to fail"
            return True
        return False

    until(ended)
    child.stop(1.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells dead from alive by /proc")
def test_it_does_not_outlive_a_killed_parent(environ: dict[str, str], tmp_path: Path) -> None:
    started = tmp_path / "pid"
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import os, pathlib, sys, time\n"
        "from loadtest.demo.children import Child\n"
        f"Child('child', ['sleeper', {str(started)!r}], dict(os.environ), pathlib.Path({str(tmp_path)!r}))\n"
        "time.sleep(600)\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(parent)], env=environ)
    try:
        until(lambda: written(started))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: gone(int(started.read_text(encoding="utf-8"))))
