"""Reads what can be replayed: Mooncake's JSONL, CSV of lengths, the router's own request log. Gzipped or not.

Which of them a file is, is told by its content. `docs/replay.md` describes the forms.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtest.replay.workload import Request, Workload, numbered

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_DEFAULT_BLOCK_SIZE = 512
LOG_VERSION = 1
_MOST_IDS = 8_000_000
_MOST_TOKENS = 10_000_000
"""Of one prompt or answer."""

Runs = tuple[int | tuple[int, int], ...]


class InputError(ValueError):
    """A file that cannot be replayed; the message names file, line and mend."""


class _Line(msgspec.Struct, frozen=True):
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


_decode = msgspec.json.Decoder(_Line).decode


def read_workload(path: Path, *, block_size: int | None = None, closed: bool | None = None) -> Workload:
    """`block_size`: tokens a block, None: as the file tells or its lengths suggest. `closed`: whether turns wait for
    the answer before them, None: those that have a think time do. Raises InputError.
    """
    text = _text(path)
    first = text.lstrip()[:1]
    if not first:
        raise InputError(f"{path} is empty: give a trace with at least one request")
    lines, told = _json_lines(path, text) if first == b"{" else (_csv_lines(path, text), None)
    if not lines:
        raise InputError(f"{path} holds no request: give a trace with at least one")
    if any(block < 0 for line in lines for run in line.hash_ids for block in ((run,) if isinstance(run, int) else run)):
        raise InputError(f"{path} has negative hash_ids: number blocks from 0 on")
    size = block_size or told or guess_block_size(lines)
    requests = _requests(_dense(lines), size, thinking=closed is True)
    if closed is False:
        requests = [msgspec.structs.replace(request, think=None) for request in requests]
    elif closed and all(request.think is None for request in requests):
        raise InputError(
            f"{path} has neither think times nor sessions with the length of their answers: replay it with --open-loop"
        )
    return Workload(name=path.name.split(".")[0], block_size=size, requests=requests)


def guess_block_size(lines: Sequence[_Line]) -> int:
    """The size under which most prompts have as many ids as full blocks, a last partial one counted or not."""
    seen = [(line.input_length or 0, _count(line.hash_ids)) for line in lines[:2000] if line.hash_ids]
    if not seen:
        return _DEFAULT_BLOCK_SIZE

    def agreeing(size: int) -> int:
        return sum(1 for tokens, ids in seen if ids in (tokens // size, -(-tokens // size)))

    return max(BLOCK_SIZES, key=agreeing)


def _text(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): name a trace file") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged gzip ({error}): fetch it again") from None


def _json_lines(path: Path, text: bytes) -> tuple[list[_Line], int | None]:
    lines: list[_Line] = []
    told: int | None = None
    base = top = 0
    log = False
    for number, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        try:
            line = _decode(raw)
        except msgspec.DecodeError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        if line.kvrouter_request_log is not None:
            if line.kvrouter_request_log != LOG_VERSION:
                raise InputError(
                    f"{path}, line {number}: request log version {line.kvrouter_request_log} is unknown here: "
                    "replay it with the kvrouter that wrote it"
                )
            if told and line.block_size and told != line.block_size:
                raise InputError(
                    f"{path}, line {number}: the block size changes from {told} to {line.block_size}: split the file"
                )
            # A router that starts again counts its blocks anew.
            told, base = line.block_size or told, top
            log = True
            continue
        if log and (line.input_length is None or line.output_length is None):
            # Refused, cut off or never counted: nobody knows how much work it was.
            continue
        if line.timestamp is None or line.input_length is None or line.output_length is None:
            raise InputError(f"{path}, line {number}: a request needs timestamp, input_length and output_length")
        _check(path, number, line)
        if base:
            line = msgspec.structs.replace(line, hash_ids=_moved(line.hash_ids, base))
        top = max(top, _end(line.hash_ids))
        lines.append(line)
    return lines, told or None


def _csv_lines(path: Path, text: bytes) -> list[_Line]:
    """Columns by name: timestamp (ms) or arrival_s, input_length, output_length, session, think (s)."""
    try:
        rows = csv.DictReader(io.StringIO(text.decode("utf-8-sig")))
        names = set(rows.fieldnames or ())
        missing = {"input_length", "output_length"} - names
        if missing or not names & {"timestamp", "arrival_s"}:
            wanted = "timestamp (ms) or arrival_s, input_length, output_length"
            raise InputError(f"{path}: the first line must name the columns {wanted}; it names {', '.join(names)}")
        lines = []
        for number, row in enumerate(rows, start=2):
            try:
                at = float(row["arrival_s"]) * 1000 if row.get("arrival_s") else float(row["timestamp"])
                lines.append(
                    _Line(
                        timestamp=at,
                        input_length=int(row["input_length"]),
                        output_length=int(row["output_length"]),
                        session=row.get("session") or None,
                        think=float(row["think"]) if row.get("think") else None,
                    )
                )
            except (TypeError, ValueError, KeyError) as error:
                raise InputError(f"{path}, line {number}: {error}") from None
            _check(path, number, lines[-1])
    except UnicodeDecodeError:
        raise InputError(f"{path} is neither JSON lines nor CSV text: give one of them") from None
    return lines


def _check(path: Path, number: int, line: _Line) -> None:
    """Raises InputError for what no request can be, before anything of its size is made."""
    tokens, output = line.input_length or 0, line.output_length or 0
    if not all(map(math.isfinite, (line.timestamp or 0.0, line.think or 0.0))):
        raise InputError(f"{path}, line {number}: a time is not finite: give a number, or leave the line out")
    if not (0 <= tokens <= _MOST_TOKENS and 0 <= output <= _MOST_TOKENS):
        raise InputError(f"{path}, line {number}: input_length and output_length must be from 0 to {_MOST_TOKENS:,}")
    if _count(line.hash_ids) > tokens + 1:
        raise InputError(f"{path}, line {number}: there are more hash_ids than input_length has tokens")


def _dense(lines: list[_Line]) -> list[_Line]:
    """The same requests with ids from 0 on, where a trace has hashes for ids."""
    if max(_end(line.hash_ids) for line in lines) <= _MOST_IDS:
        return lines
    numbers: dict[int, int] = {}
    out: list[_Line] = []
    for line in lines:
        ids = tuple(
            numbers.setdefault(block, len(numbers))
            for run in line.hash_ids
            for block in ((run,) if isinstance(run, int) else range(run[0], run[0] + run[1]))
        )
        out.append(msgspec.structs.replace(line, hash_ids=ids))
    return out


def _requests(lines: Sequence[_Line], size: int, *, thinking: bool) -> list[Request]:
    """By time, beginning at 0. A prompt without ids has blocks that nobody else has.

    `thinking`: a turn without a think time thought from the end of the answer before it until it came.
    """
    lines = sorted(lines, key=lambda line: line.timestamp or 0.0)
    top = max(_end(line.hash_ids) for line in lines)
    bare = sum((line.input_length or 0) // size for line in lines if not line.hash_ids)
    # One object for each id: a trace of long prompts names the same ones millions of times.
    ids = list(range(top + bare))
    begin = lines[0].timestamp or 0.0
    sessions: dict[int | str, int] = {}
    requests: list[Request] = []
    before: dict[int, _Line] = {}
    for number, line in enumerate(lines):
        prompt = max(line.input_length or 0, 1)
        full = prompt // size
        if line.hash_ids:
            blocks = _expanded(line.hash_ids, ids)[:full]
        else:
            blocks, top = ids[top : top + full], top + full
        session = None if line.session is None else sessions.setdefault(line.session, len(sessions))
        think = None
        if session is not None:
            if session in before:
                think = _think(before[session], line) if thinking or line.think is not None else None
            before[session] = line
        requests.append(
            Request(
                number=number,
                at=((line.timestamp or 0.0) - begin) / 1000,
                prompt=prompt,
                output=max(line.output_length or 0, 1),
                blocks=blocks,
                session=session,
                think=think,
            )
        )
    return numbered(requests)


def _think(previous: _Line, line: _Line) -> float | None:
    if line.think is not None or previous.e2e_s is None:
        return line.think
    return max((line.timestamp or 0.0) / 1000 - (previous.timestamp or 0.0) / 1000 - previous.e2e_s, 0.0)


def _expanded(runs: Runs, ids: list[int]) -> list[int]:
    out: list[int] = []
    for run in runs:
        if isinstance(run, int):
            out.append(ids[run])
        else:
            out += ids[run[0] : run[0] + run[1]]
    return out


def _count(runs: Runs) -> int:
    return sum(1 if isinstance(run, int) else run[1] for run in runs)


def _end(runs: Iterable[int | tuple[int, int]]) -> int:
    return max((run + 1 if isinstance(run, int) else run[0] + run[1] for run in runs), default=0)


def _moved(runs: Runs, by: int) -> Runs:
    return tuple(run + by if isinstance(run, int) else (run[0] + by, run[1]) for run in runs)
