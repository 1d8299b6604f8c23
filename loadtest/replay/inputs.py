"""Reads what can be replayed: Mooncake's JSONL, CSV of lengths, the router's own request log. Gzipped or not.

Which of them a file is, is told by its content. `docs/replay.md` describes the forms.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadtest.replay.csv_lines import csv_lines
from loadtest.replay.json_lines import json_lines
from loadtest.replay.lines import InputError, Line, Runs, count, end
from loadtest.replay.workload import Request, Workload, numbered

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_DEFAULT_BLOCK_SIZE = 512
_MOST_IDS = 8_000_000
_LONGEST_MS = 10 * 366 * 86_400_000.0
"""Of a trace. Behind much more than that, a float tells no tokens' times apart."""


def read_workload(
    path: Path,
    *,
    block_size: int | None = None,
    closed: bool | None = None,
    remarked: Callable[[str], None] = lambda _: None,
) -> Workload:
    """`block_size`: tokens a block, None: as the file tells or its lengths suggest. `closed`: whether turns wait for
    the answer before them, None: those that have a think time do. `remarked` is told what of the file is not replayed.
    Raises InputError.
    """
    text = _text(path)
    first = text.lstrip()[:1]
    if not first:
        raise InputError(f"{path} is empty: give a trace with at least one request")
    if first == b"[":
        raise InputError(f"{path} is one JSON array: write an object a line (jq -c '.[]')")
    read = json_lines(path, text) if first == b"{" else csv_lines(path, text)
    lines = read.lines
    if not lines:
        why = "".join(f" ({remark.removeprefix(f'{path}: ')})" for remark in read.remarks)
        raise InputError(f"{path} holds no request that can be replayed{why}: give a trace with at least one")
    for remark in read.remarks:
        remarked(remark)
    if any(block < 0 for line in lines for run in line.hash_ids for block in ((run,) if isinstance(run, int) else run)):
        raise InputError(f"{path} has negative hash_ids: number blocks from 0 on")
    times = [line.timestamp or 0.0 for line in lines]
    if max(times) - min(times) > _LONGEST_MS:
        raise InputError(
            f"{path} goes from timestamp {min(times):.15g} ms to {max(times):.15g} ms, which is more than ten years: "
            "leave out the lines whose time is wrong"
        )
    size = _block_size(path, lines, read.block_size, block_size)
    seen = _lengths(lines)
    if not read.block_size and (odd := len(seen) - _agreeing(seen, size)):
        remarked(
            f"{path}: {odd} of {len(seen)} prompts have another number of hash_ids than blocks of {size} tokens: "
            "what they share is told wrongly"
        )
    requests = _requests(_dense(lines), size, thinking=closed is True)
    if closed is False:
        requests = [msgspec.structs.replace(request, think=None) for request in requests]
    elif closed and all(request.think is None for request in requests):
        raise InputError(
            f"{path} has neither think times nor sessions with the length of their answers: replay it with --open-loop"
        )
    return Workload(name=path.name.split(".")[0], block_size=size, requests=requests)


def _block_size(path: Path, lines: Sequence[Line], told: int | None, asked: int | None) -> int:
    """Tokens a block: as asked, as the file tells, or as the most lines agree on. Raises InputError."""
    if asked and told and asked != told:
        raise InputError(f"{path} says that its blocks have {told} tokens: leave --block-size {asked} out")
    if told:
        return told
    seen = _lengths(lines[:2000])
    if not seen:
        return asked or _DEFAULT_BLOCK_SIZE
    likely = max(BLOCK_SIZES, key=lambda size: _agreeing(seen, size))
    if _agreeing(seen, asked or likely) * 2 >= len(seen):
        return asked or likely
    if asked:
        tokens, ids = max(seen)
        raise InputError(
            f"{path}: --block-size {asked} does not agree with most lines, of which one has {ids} hash_ids for "
            f"{tokens} tokens: leave it out, or give the size that ids were made with"
        )
    raise InputError(
        f"{path}: input_length and the number of hash_ids agree with no usual block size on most lines: "
        "give the size that ids were made with as --block-size"
    )


def _lengths(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """(tokens, ids) of the prompts that have ids."""
    return [(line.input_length or 0, count(line.hash_ids)) for line in lines if line.hash_ids]


def _agreeing(seen: Sequence[tuple[int, int]], size: int) -> int:
    """Prompts with as many ids as blocks of `size` tokens; a last partial block is counted or not."""
    return sum(1 for tokens, ids in seen if ids in (tokens // size, -(-tokens // size)))


def _text(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return text.removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): name a trace file") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged gzip ({error}): fetch it again") from None


def _dense(lines: list[Line]) -> list[Line]:
    """The same requests with ids from 0 on, where a trace has hashes for ids."""
    if max(end(line.hash_ids) for line in lines) <= _MOST_IDS:
        return lines
    numbers: dict[int, int] = {}
    out: list[Line] = []
    for line in lines:
        ids = tuple(
            numbers.setdefault(block, len(numbers))
            for run in line.hash_ids
            for block in ((run,) if isinstance(run, int) else range(run[0], run[0] + run[1]))
        )
        out.append(msgspec.structs.replace(line, hash_ids=ids))
    return out


def _requests(lines: Sequence[Line], size: int, *, thinking: bool) -> list[Request]:
    """By time, beginning at 0. A prompt without ids has blocks that nobody else has.

    `thinking`: a turn without a think time thought from the end of the answer before it until it came.
    """
    lines = sorted(lines, key=lambda line: line.timestamp or 0.0)
    top = max(end(line.hash_ids) for line in lines)
    bare = sum((line.input_length or 0) // size for line in lines if not line.hash_ids)
    # One object for each id: a trace of long prompts names the same ones millions of times.
    ids = list(range(top + bare))
    begin = lines[0].timestamp or 0.0
    sessions: dict[int | str, int] = {}
    requests: list[Request] = []
    before: dict[int, Line] = {}
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


def _think(previous: Line, line: Line) -> float | None:
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
