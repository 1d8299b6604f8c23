"""A line of a file that can be replayed, whatever its form, and what no request can be. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

_MOST_TOKENS = 10_000_000
"""Of one prompt or answer."""
_LONGEST_THINK_S = 10_000_000.0

Runs = tuple[int | tuple[int, int], ...]


class InputError(ValueError):
    """A file that cannot be replayed; the message names file, line and mend."""


class Line(msgspec.Struct, frozen=True):
    """A request of a trace or of a request log, or a log's head. Times in ms, think in s; lengths in tokens."""

    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: Runs = ()
    session: int | str | None = None
    turn: int | None = None
    think: float | None = None
    e2e_s: float | None = None
    kvrouter_request_log: int | None = None
    block_size: int | None = None
    writer: str | None = None
    """Of a log that several processes write: who numbered the blocks."""
    outcome: str | None = None
    """Of a log alone: how the request ended."""
    left_out: int | None = None
    """On a line of its own: so many requests could not be written."""


class Read(msgspec.Struct, frozen=True):
    lines: list[Line]
    block_size: int | None = None
    """As the file tells."""
    remarks: tuple[str, ...] = ()
    """What of the file is not replayed, or was never written, for people."""


def check(path: Path, number: int, line: Line) -> None:
    """Raises InputError for what no request can be, before anything of its size is made."""
    tokens, output = line.input_length or 0, line.output_length or 0
    if not all(map(math.isfinite, (line.timestamp or 0.0, line.think or 0.0))):
        raise InputError(f"{path}, line {number}: a time is not finite: give a number, or leave the line out")
    if not 0.0 <= (line.think or 0.0) <= _LONGEST_THINK_S:
        raise InputError(f"{path}, line {number}: think must be from 0 to {_LONGEST_THINK_S:,.0f} s")
    if not (0 <= tokens <= _MOST_TOKENS and 0 <= output <= _MOST_TOKENS):
        raise InputError(f"{path}, line {number}: input_length and output_length must be from 0 to {_MOST_TOKENS:,}")
    if count(line.hash_ids) > tokens + 1:
        raise InputError(f"{path}, line {number}: there are more hash_ids than input_length has tokens")


def count(runs: Runs) -> int:
    return sum(1 if isinstance(run, int) else run[1] for run in runs)


def end(runs: Iterable[int | tuple[int, int]]) -> int:
    return max((run + 1 if isinstance(run, int) else run[0] + run[1] for run in runs), default=0)


def moved(runs: Runs, by: int) -> Runs:
    return tuple(run + by if isinstance(run, int) else (run[0] + by, run[1]) for run in runs)
