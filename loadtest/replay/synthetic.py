"""Workloads made here, for whoever has no trace and for what no trace shows in pure form. PURE.

Ten minutes each (long-agents: twenty), the same every time; rates suit eight engines of 70b-tp4, `--speed` scales them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from loadtest.replay.workload import Request, Workload, numbered

BLOCK = 128
_SECONDS = 600.0


class _Blocks:
    """Ids that nobody had before."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[int]:
        first, self._next = self._next, self._next + count
        return list(range(first, self._next))


def _arrivals(rng: random.Random, rate: float, seconds: float = _SECONDS) -> Iterator[float]:
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def _output(rng: random.Random, median: float) -> int:
    return max(1, round(median * rng.lognormvariate(0.0, 0.7)))


def _request(at: float, blocks: list[int], output: int, rng: random.Random) -> Request:
    return Request(number=0, at=at, prompt=len(blocks) * BLOCK + rng.randrange(1, BLOCK), output=output, blocks=blocks)


def _shared_prompt(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    system = blocks.take(32)
    for at in _arrivals(rng, 12.0):
        yield _request(at, [*system, *blocks.take(rng.randint(4, 24))], _output(rng, 200), rng)


def _unique(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    for at in _arrivals(rng, 7.0):
        yield _request(at, blocks.take(rng.randint(8, 56)), _output(rng, 200), rng)


def _hot_document(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    document = blocks.take(128)
    for at in _arrivals(rng, 9.0):
        hot = rng.random() < 0.5
        prompt = [*document, *blocks.take(rng.randint(1, 4))] if hot else blocks.take(rng.randint(8, 56))
        yield _request(at, prompt, _output(rng, 200), rng)


def _mixed(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    for at in _arrivals(rng, 4.5):
        if rng.random() < 0.4:
            yield _request(at, blocks.take(rng.randint(48, 160)), _output(rng, 60), rng)
        else:
            yield _request(at, blocks.take(rng.randint(1, 8)), _output(rng, 900), rng)


def _agents(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    """Turns of tool-using agents, which wait for the answer before them."""
    tools = [blocks.take(rng.randint(16, 48)) for _ in range(6)]
    for session, begins in enumerate(_arrivals(rng, 0.5)):
        held = [*rng.choice(tools), *blocks.take(rng.randint(2, 16))]
        for turn in range(min(1 + int(rng.expovariate(0.12)), 40)):
            output = _output(rng, 120)
            asked = _request(begins, list(held), output, rng)
            yield replace(asked, session=session, think=rng.expovariate(1 / 4.0) if turn else None)
            held += blocks.take(output // BLOCK + rng.randint(1, 8))


def _long_agents(rng: random.Random, blocks: _Blocks) -> Iterator[Request]:
    """Coding agents: long contexts that are asked for again after seconds or minutes."""
    tools = [blocks.take(rng.randint(30, 100)) for _ in range(4)]
    for session, begins in enumerate(_arrivals(rng, 0.16, 2 * _SECONDS)):
        held = [*rng.choice(tools), *blocks.take(rng.randint(62, 390))]
        for turn in range(1 + int(rng.expovariate(0.05))):
            if len(held) * BLOCK > 120_000:
                break
            output = _output(rng, 150)
            asked = _request(begins, list(held), output, rng)
            think = min(12.0 * rng.lognormvariate(0.0, 1.2), 120.0) if turn else None
            yield replace(asked, session=session, think=think)
            held += blocks.take(output // BLOCK + max(1, int(rng.expovariate(BLOCK / 800))))


KINDS: Mapping[str, Callable[[random.Random, _Blocks], Iterator[Request]]] = MappingProxyType(
    {
        "agents": _agents,
        "hot-document": _hot_document,
        "long-agents": _long_agents,
        "mixed": _mixed,
        "shared-prompt": _shared_prompt,
        "unique": _unique,
    }
)
"""agents: growing conversations over six tool prompts, in a closed loop; hot-document: half of all ask about one long
document; long-agents: coding agents with long contexts; mixed: long prompts with short answers beside short ones with
long answers; shared-prompt: one system prompt before everything; unique: nothing is shared."""


def make(kind: str) -> Workload:
    """Raises KeyError for an unknown kind."""
    made = KINDS[kind](random.Random(f"synthetic/{kind}"), _Blocks())
    return Workload(name=kind, block_size=BLOCK, requests=numbered(sorted(made, key=lambda request: request.at)))
