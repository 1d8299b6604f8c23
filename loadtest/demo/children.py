"""Child: a process of ours on a leash, its output in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_LINES = 20


class ChildFailed(Exception):
    """A process did not come up, or ended by itself. The message is for the person at the terminal."""


class Child:
    """``python -m MODULE ARGS...`` in a session of its own: Ctrl-C reaches the parent alone, which ends it."""

    def __init__(self, name: str, arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: a folder named like one of our packages in the current directory must not get in the way.
                [sys.executable, "-P", "-m", "loadtest.demo.leash", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process itself: the leash runs the module in its own process."""
        return self._process.pid

    def check(self) -> None:
        """Raises `ChildFailed` when it has ended."""
        code = self._process.poll()
        if code is not None:
            raise ChildFailed(f"the {self.name} ended by itself (exit code {code}); it said last:\n{self.tail()}")

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "nothing"

    def begin_stop(self) -> None:
        """Asks it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self, timeout_s: float) -> None:
        """Ends it, the hard way after `timeout_s`."""
        self.begin_stop()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def plain_environment() -> dict[str, str]:
    """This process's environment without the settings of a router: a demonstration is the same for everybody."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("KVROUTER_")}
