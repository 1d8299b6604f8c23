"""Request traces with prefix structure: reading, writing, spreading over time and generating. PURE but for the files.

The form is Mooncake's: a JSON object a line with `timestamp` (ms), `input_length` and `output_length` (tokens) and
`hash_ids`, the prompt's blocks: the same id means the same block behind the same prefix. Ids stand as a list, or run by
run as ``[[first, count], ...]``. `session`, `turn` and `think` (s) may be there. Public traces of this form are found
at kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec


class TraceError(ValueError):
    """A line that is no request; the message names file, line and what is wrong."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a trace."""

    timestamp: float
    """Milliseconds since the trace began."""
    input_length: int
    output_length: int
    runs: tuple[int | tuple[int, int], ...] = msgspec.field(name="hash_ids", default=())
    """Block ids and runs of them (first, count), as the line has them."""
    session: int | None = None
    turn: int | None = None
    think: float | None = None

    def hash_ids(self) -> Iterator[int]:
        """The prompt's block ids, in order."""
        for run in self.runs:
            if isinstance(run, int):
                yield run
            else:
                yield from range(run[0], run[0] + run[1])


_decode = msgspec.json.Decoder(TraceRequest).decode


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a JSONL file, gzipped or not. Raises TraceError; OSError as it comes."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    requests = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            requests.append(_decode(line))
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
    return requests


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """JSONL, in gzip when the name ends so."""
    text = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def spread(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Requests that share a timestamp are laid evenly between it and the next one: recorders that round their times to
    ticks of some seconds would else make bursts that never were. The last tick keeps its time."""
    groups = [list(group) for _, group in groupby(requests, key=lambda request: request.timestamp)]
    out: list[TraceRequest] = []
    for index, group in enumerate(groups):
        begin = group[0].timestamp
        end = groups[index + 1][0].timestamp if index + 1 < len(groups) else begin
        step = (end - begin) / len(group)
        out += [
            msgspec.structs.replace(request, timestamp=begin + number * step) for number, request in enumerate(group)
        ]
    return out


def generate(
    seed: int,
    *,
    sessions: int = 20,
    groups: int = 4,
    turns: int = 4,
    block_tokens: int = 512,
    shared_blocks: int = 4,
    session_rate: float = 1.0,
    think_s: float = 3.0,
) -> list[TraceRequest]:
    """Conversations in the shape of a tool-using agent's trace, sorted by time.

    Each of `sessions` begins with the `shared_blocks` of its group and grows by one to three blocks a turn, up to
    `turns` turns; sessions arrive at `session_rate` a second, turns follow after about `think_s` seconds.
    """
    rng = random.Random(f"{seed}/trace")
    fresh = groups * shared_blocks
    requests: list[TraceRequest] = []
    arrival = 0.0
    for session in range(sessions):
        arrival += rng.expovariate(session_rate)
        at = arrival
        group = rng.randrange(groups)
        held: list[tuple[int, int]] = [(group * shared_blocks, shared_blocks)]
        for turn in range(rng.randint(1, turns)):
            grown = rng.randint(1, 3)
            held.append((fresh, grown))
            fresh += grown
            blocks = sum(length for _, length in held)
            think = rng.expovariate(1 / think_s) if turn else 0.0
            at += think
            requests.append(
                TraceRequest(
                    timestamp=round(at * 1000),
                    input_length=blocks * block_tokens - rng.randrange(block_tokens // 2),
                    output_length=max(1, round(rng.lognormvariate(4.5, 0.7))),
                    runs=_joined(held),
                    session=session,
                    turn=turn,
                    think=round(think, 3),
                )
            )
    return sorted(requests, key=lambda request: request.timestamp)


def reuse(requests: Iterable[TraceRequest]) -> float:
    """The share of blocks that some earlier request had: what an endless cache on one engine could hit (0..1)."""
    seen: set[int] = set()
    hits = total = 0
    for request in requests:
        ids = list(request.hash_ids())
        hits += sum(block in seen for block in ids)
        total += len(ids)
        seen.update(ids)
    return hits / total if total else 0.0


def _joined(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Runs that touch become one."""
    joined: list[tuple[int, int]] = []
    for first, length in runs:
        if joined and sum(joined[-1]) == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((first, length))
    return tuple(joined)


def take(requests: Sequence[TraceRequest], index: int, of: int) -> Iterator[TraceRequest]:
    """Every `of`-th request from the `index`-th on: the part of one of several processes."""
    return iter(requests[index::of])
