"""Lines of JSON: Mooncake's traces, and the request log with its heads and what a crash left behind. PURE."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtest.replay.lines import InputError, Line, Read, Runs, check, end, moved
from loadtest.replay.words import how_many

LOG_VERSION = 1
_SPAN = 1 << 48
"""More blocks than one router ever counts."""

_decode = msgspec.json.Decoder(Line).decode


def json_lines(path: Path, text: bytes) -> Read:
    read = _Taken(path)
    broken: tuple[int, msgspec.DecodeError] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        try:
            line = _decode(raw)
        except msgspec.DecodeError as error:
            if broken is not None:
                raise _no_request(path, *broken) from None
            broken = number, error
            continue
        if broken is not None:
            # A router that finds half a line begins a new one, and with it anew: a crash or a full disk had cut it off.
            if line.kvrouter_request_log is None and line.left_out is None:
                raise _no_request(path, *broken)
            read.cut(broken[0])
            broken = None
        read.take(number, line)
    if broken is not None:
        if text.endswith(b"\n") or not read.any:
            raise _no_request(path, *broken)
        read.cut(broken[0])
    return read.all()


def _no_request(path: Path, number: int, error: msgspec.DecodeError) -> InputError:
    return InputError(f"{path}, line {number}: {error}: mend the line or take it out")


class _Numbering:
    """Where one writer's block numbers lie: apart from the others', which grow beside it, and behind its own past."""

    def __init__(self, first: int) -> None:
        self._base = self._top = first

    def begin_anew(self) -> None:
        self._base = self._top

    def placed(self, runs: Runs) -> Runs:
        self._top = max(self._top, self._base + end(runs))
        return moved(runs, self._base) if self._base else runs


class _Taken:
    """Takes a trace's or a request log's lines one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []
        self._told: int | None = None
        self._numbering: dict[str | None, _Numbering] = {}
        self._log = False
        self._uncounted = self._left_out = 0
        self._cut: list[int] = []

    @property
    def any(self) -> bool:
        return self._log or bool(self._lines)

    def cut(self, number: int) -> None:
        self._cut.append(number)

    def take(self, number: int, line: Line) -> None:
        """Raises InputError."""
        if line.kvrouter_request_log is not None:
            self._head(number, line)
        elif line.left_out is not None:
            self._left_out += line.left_out
        elif self._log and (line.input_length is None or line.output_length is None):
            # Refused, cut off or never counted: nobody knows how much work it was.
            self._uncounted += 1
        else:
            self._request(number, line)

    def _head(self, number: int, line: Line) -> None:
        if line.kvrouter_request_log != LOG_VERSION:
            raise InputError(
                f"{self._path}, line {number}: request log version {line.kvrouter_request_log} is unknown here: "
                "replay it with the kvrouter that wrote it"
            )
        if self._told and line.block_size and self._told != line.block_size:
            raise InputError(
                f"{self._path}, line {number}: the block size changes from {self._told} to {line.block_size}: "
                "split the file"
            )
        # A router that starts again counts its blocks anew.
        self._told = line.block_size or self._told
        self._numbering_of(line.writer).begin_anew()
        self._log = True

    def _request(self, number: int, line: Line) -> None:
        if line.timestamp is None or line.input_length is None or line.output_length is None:
            if line.outcome is not None:
                raise InputError(
                    f"{self._path}, line {number}: this looks like a piece of a request log: put before its first line "
                    'the one of the whole log that begins with {"kvrouter_request_log", the last one above the piece'
                )
            raise InputError(f"{self._path}, line {number}: a request needs timestamp, input_length and output_length")
        check(self._path, number, line)
        placed = self._numbering_of(line.writer).placed(line.hash_ids)
        if placed is not line.hash_ids:
            line = msgspec.structs.replace(line, hash_ids=placed)
        self._lines.append(line)

    def _numbering_of(self, writer: str | None) -> _Numbering:
        numbering = self._numbering.get(writer)
        if numbering is None:
            numbering = self._numbering[writer] = _Numbering(len(self._numbering) * _SPAN)
        return numbering

    def all(self) -> Read:
        remarks = []
        if self._cut:
            places = ", ".join(map(str, self._cut))
            remarks.append(f"line {places} was cut off in the middle, as by a crash or a full disk, and is left out")
        if self._uncounted:
            remarks.append(
                f"{how_many(self._uncounted, 'request')} whose lengths are unknown (refused, cut off, streamed without "
                f"usage) {'is' if self._uncounted == 1 else 'are'} left out"
            )
        if self._left_out:
            remarks.append(
                f"the router could not write {how_many(self._left_out, 'request')}: "
                f"{'it is' if self._left_out == 1 else 'they are'} missing"
            )
        return Read(self._lines, self._told or None, tuple(f"{self._path}: {remark}" for remark in remarks))
