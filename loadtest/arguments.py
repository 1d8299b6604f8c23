"""What the commands of this package share in reading their arguments: numbers within bounds, complaints in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kvindex.redis_address import parse_address

BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Bad input is one sentence on standard error and exit code 2, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {' '.join(message.split())} (see --help)\n")
        sys.exit(BAD_INPUT)


def complain(error: Exception) -> int:
    """Says what stands in the way, in one line. Returns the exit code."""
    sys.stderr.write(f"error: {' '.join(str(error).split()) or type(error).__name__}\n")
    return BAD_INPUT


def whole(least: int, most: int = 1_000_000_000) -> Callable[[str], int]:
    """A whole number from `least` to `most`, as ``type=`` of an argument."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {least} to {most}")
        return value

    return read


def positive(text: str) -> float:
    """A number above 0, as ``type=`` of an argument."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above 0")
    return value


def redis_url(text: str) -> str:
    """A Redis address, as ``type=`` of an argument; never shown, it may hold a password."""
    try:
        parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def writable(text: str) -> Path:
    """A file whose folder is there, as ``type=`` of an argument: what takes minutes must not fail at its last step."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that exists")
    return path


PORT = whole(1, 65535)
