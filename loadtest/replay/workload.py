"""Workload: what is replayed, as values, and what prepares it: arrival jitter, speed, sessions, windows. PURE."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request to replay."""

    number: int
    at: float
    """Seconds since the workload began. Of a turn that waits for the one before it: not looked at."""
    prompt: int
    """Tokens, at least 1."""
    output: int
    """Tokens, at least 1."""
    blocks: Sequence[int]
    """Ids of the prompt's full blocks: the same id is the same block behind the same prefix."""
    session: int | None = None
    think: float | None = None
    """Seconds between the end of the session's previous answer and this turn; None: it comes at `at`, whatever came of
    the one before."""
    answer_blocks: Sequence[int] = ()
    """Ids of the full blocks that the answer ends, for engines that cache them."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    block_size: int
    requests: Sequence[Request]
    """By time."""

    @property
    def closed(self) -> bool:
        """Whether turns wait for answers."""
        return any(request.think is not None for request in self.requests)


def jittered(requests: Sequence[Request], rng: random.Random, most_s: float = 5.0) -> list[Request]:
    """Each arrival is laid at random between its time and the next different one, `most_s` at the most.

    Recorders round times to ticks; what came within one tick would else make bursts that never were.
    """
    groups = [list(group) for _, group in groupby(requests, key=lambda request: request.at)]
    out: list[Request] = []
    for index, group in enumerate(groups):
        begin = group[0].at
        room = groups[index + 1][0].at - begin if index + 1 < len(groups) else 0.0
        times = sorted(begin + rng.random() * min(room, most_s) for _ in group)
        out += [msgspec.structs.replace(request, at=at) for request, at in zip(group, times, strict=True)]
    return out


def faster(requests: Iterable[Request], speed: float) -> list[Request]:
    """`speed` times as many arrivals a second; pauses between turns shrink in the same way."""
    return [
        msgspec.structs.replace(
            request, at=request.at / speed, think=None if request.think is None else request.think / speed
        )
        for request in requests
    ]


def arriving_from(requests: Iterable[Request], begin_s: float) -> list[Request]:
    """Those that arrive from then on, at their times; a turn that waits for one that is left out is left out too."""
    without: set[int | None] = set()
    out: list[Request] = []
    for request in requests:
        if request.session in without if request.think is not None else request.at < begin_s:
            without.add(request.session)
        else:
            without.discard(request.session)
            out.append(request)
    return out


def with_sessions(requests: Sequence[Request]) -> list[Request]:
    """Sessions found by what continues what, where the trace names none.

    A request continues the one whose prompt's last full block its own prompt contains furthest in; a first block alone
    proves nothing, since a system prompt is in every request.
    """
    last_of: dict[int, int] = {}
    out: list[Request] = []
    sessions = 0
    for request in requests:
        session = next((last_of[b] for b in reversed(request.blocks[1:]) if b in last_of), None)
        if session is None:
            session, sessions = sessions, sessions + 1
        if len(request.blocks) > 1:
            last_of[request.blocks[-1]] = session
        out.append(msgspec.structs.replace(request, session=session))
    return out


def with_answers(requests: Sequence[Request], block_size: int) -> list[Request]:
    """Answers' blocks, as far as a later turn of the same session shows them; blocks that no later prompt contains get
    ids of their own."""
    fresh = 1 + max((block for request in requests for block in request.blocks[-1:]), default=0)
    fresh = max(fresh, 1 + max((max(request.blocks, default=0) for request in requests), default=0))
    following: dict[int, Request] = {}
    out: list[Request] = []
    for request in reversed(requests):
        first, end = request.prompt // block_size, (request.prompt + request.output - 1) // block_size
        known: Sequence[int] = ()
        later = following.get(request.session) if request.session is not None else None
        if later is not None and (first == 0 or later.blocks[first - 1 : first] == request.blocks[first - 1 : first]):
            known = later.blocks[first:end]
        missing = end - first - len(known)
        answer = (*known, *range(fresh, fresh + missing))
        fresh += missing
        if request.session is not None:
            following[request.session] = request
        out.append(msgspec.structs.replace(request, answer_blocks=answer))
    out.reverse()
    return out


def merged(name: str, workloads: Sequence[Workload]) -> Workload:
    """Several at the same time; their blocks and sessions stay apart. Raises ValueError if block sizes differ."""
    sizes = {workload.block_size for workload in workloads}
    if len(sizes) != 1:
        raise ValueError(f"the traces have blocks of {', '.join(map(str, sorted(sizes)))} tokens")
    blocks = sessions = 0
    requests: list[Request] = []
    for workload in workloads:
        requests += [
            msgspec.structs.replace(
                request,
                blocks=[block + blocks for block in request.blocks] if blocks else request.blocks,
                session=None if request.session is None else request.session + sessions,
            )
            for request in workload.requests
        ]
        blocks = 1 + max((max(r.blocks, default=0) for r in requests), default=0)
        sessions = 1 + max((r.session for r in requests if r.session is not None), default=0)
    requests.sort(key=lambda request: request.at)
    return Workload(name=name, block_size=sizes.pop(), requests=numbered(requests))


def numbered(requests: Iterable[Request]) -> list[Request]:
    return [msgspec.structs.replace(request, number=number) for number, request in enumerate(requests)]
