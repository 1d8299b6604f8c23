"""LogFile: a file that whole lines are appended to, one write a batch, so that several processes may share it.

Follows a path that is moved or emptied by somebody else, and never goes on behind half a line: what a full disk or a
crash has left is ended first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Appended(NamedTuple):
    lines: int
    """Of those given, the first so many are in the file, whole."""
    trouble: OSError | None
    """What stands in the way of the rest."""


class LogFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._at_most = 0

    def follow(self) -> bool:
        """Opens what is at the path now. True: this is not where the last line went. Raises OSError."""
        if self._file is not None and not self._moved(self._file):
            return False
        self.close()
        # Readable too: how the last line ends is looked at.
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        self._at_most = os.fstat(self._file).st_size
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def torn(self) -> bool:
        """Whether the file ends within a line. Raises OSError."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def append(self, lines: Sequence[bytes]) -> Appended:
        """`lines` without their ends."""
        assert self._file is not None
        data = memoryview(b"".join([line + b"\n" for line in lines]))
        written, trouble = 0, None
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            trouble = error
        self._at_most += written
        return Appended(data[:written].tobytes().count(b"\n"), trouble)

    def _moved(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        here = os.fstat(file)
        # Shorter than what was written: it was emptied.
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or here.st_size < self._at_most
