"""What a command writes at its end: tried before the work, which may take long, and written after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from router.errors import ConfigError

STANDARD_OUTPUT = Path("-")


def trouble(path: Path) -> str:
    """Why `path` could not be written now, in a few words; empty when it could. Nothing is made or opened."""
    try:
        if "\0" in str(path):
            return "no path"
        if path.is_dir():
            return "is a directory"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "permission denied"
        folder = path.absolute().parent
        if not folder.is_dir():
            return "no such folder"
        return "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        return error.strerror or "no path"


def check(json: Path | None, html: Path | None, reads: Sequence[str | Path] = ()) -> None:
    """What ``--json`` and ``--html`` name; None: not given. `reads`: files that the work reads, there or not.

    Raises `ConfigError` where one could not be written, or would be in the place of what is read.
    """
    if html == STANDARD_OUTPUT:
        raise ConfigError("--html -: a page is written to a file: name one, like report.html")
    if json is not None and json == html:
        raise ConfigError(f"--json and --html both name {json}: give each a file of its own")
    for option, path in (("--json", json), ("--html", html)):
        if path is not None and path != STANDARD_OUTPUT and (why := trouble(path)):
            raise ConfigError(f"{option} {path} cannot be written ({why}): name a file in a folder of yours")
    for option, path in (("--json", json), ("--html", html)):
        if path is not None and path != STANDARD_OUTPUT and any(_same(path, Path(other)) for other in reads):
            raise ConfigError(f"{option} {path} would overwrite a file that is read: name another one")


def _same(path: Path, other: Path) -> bool:
    """Whether both are one file, by whatever names; no where one of them is not there."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


def make_folder(option: str, path: Path) -> None:
    """Raises `ConfigError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be made ({error.strerror}): name a folder of yours") from None


def remark(sentence: str) -> None:
    """Something a user should know that is no mistake, on standard error."""
    sys.stderr.write(f"kvrouter: {sentence}\n")


def write(path: Path, content: bytes) -> None:
    """Raises `ConfigError`."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another file") from None
