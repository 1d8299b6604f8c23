"""The folder in which a parent and its workers meet: short enough for sockets, theirs alone, and swept up in the end.

Its owner holds a lock on a file in it for as long as it lives, however it ends: a folder of ours whose lock can be had
was left by a parent that was killed, and the next start takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from router.errors import ConfigError

logger = logging.getLogger(__name__)

_PREFIX = "kvrouter-"
_OWNER = "owner.lock"
_MOST_BYTES = 103
"""Of a socket's path, everywhere: 107 on Linux."""
_WITHIN = len(f"/{_PREFIX}xxxxxxxx/worker255.sock")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


@contextlib.contextmanager
def meeting_place(roots: Sequence[str] | None = None) -> Iterator[Path]:
    """A new folder, away with everything in it at the end. Raises `ConfigError` when there can be none.

    `roots`: where it may be, the first that will do; by default where temporary files go, then where they usually do.
    """
    if roots is None:
        roots = (_temporary(), *_SHORT)
    path = _made(roots)
    for root in dict.fromkeys(roots):
        _sweep(Path(root))
    try:
        with _owned(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR", "/tmp")


def _made(roots: Sequence[str]) -> Path:
    for root in roots:
        if len(os.fsencode(root)) + _WITHIN > _MOST_BYTES:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        except OSError:
            # Not there, full, or not for us to write in: the next one may do.
            continue
    tried = ", ".join(dict.fromkeys(roots))
    raise ConfigError(
        f"server.workers: workers meet in a folder for temporary files, and none of {tried} can be written and has a "
        f"path of at most {_MOST_BYTES - _WITHIN} bytes: let TMPDIR name one"
    )


@contextlib.contextmanager
def _owned(path: Path) -> Iterator[None]:
    # Locked before it has its name: nobody finds it there without its owner.
    unnamed = path / f"{_OWNER}.new"
    with unnamed.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(path / _OWNER)
        yield


def _sweep(root: Path) -> None:
    """Takes away what parents left here that are gone."""
    for path in root.glob(f"{_PREFIX}*"):
        try:
            if not _ours(path):
                continue
            with (path / _OWNER).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        except OSError:
            # Its owner lives, it has none yet, it is no folder, or another start is faster.
            continue
        logger.info("%s is taken away: the router that it belonged to is gone", path)


def _ours(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
