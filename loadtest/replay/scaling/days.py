"""Days of traffic, compressed, the same every time: what a fleet must follow. PURE.

diurnal: one swing between a fifth and the whole, with noise that wanders; bursts: a calm load that is five times as
high within a minute, three times; shift: from long prompts with short answers to short prompts with long answers, at a
steady rate; steady: the same all the time; batch: the bursts, with latency-tolerant requests beside them. NAME@TIMES is
a day with so many times the traffic, for a greater fleet: one engine is then a smaller part of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from loadtest.replay.workload import Request, Workload, numbered
from router.errors import ConfigError

DAY = "day:"
"""Begins the name of such a day where a trace could stand."""
BLOCK = 512
SECONDS = 3600.0


class Kind(NamedTuple):
    """Lengths in tokens, as means of lognormal laws."""

    prompt: int
    output: int
    shared: int = 0
    """Of the prompt, the same in all requests of the kind."""


CHAT = Kind(1400, 220, 512)
DOCUMENT = Kind(3600, 160)
LONG = Kind(3600, 100)
WRITE = Kind(400, 700)


class Moment(NamedTuple):
    rate: float
    mix: Mapping[Kind, float]


Course = Callable[[float], Moment]
_CHAT = {CHAT: 0.75, DOCUMENT: 0.25}


def _diurnal(rng: random.Random) -> Course:
    wander = [0.0]
    for _ in range(int(SECONDS / 60) + 2):
        wander.append(0.8 * wander[-1] + rng.gauss(0.0, 0.05))

    def at(now: float) -> Moment:
        swing = 0.6 - 0.4 * math.cos(2 * math.pi * now / SECONDS)
        return Moment(9.0 * swing * math.exp(wander[int(now / 60)]), _CHAT)

    return at


def _bursts(rng: random.Random) -> Course:
    begins = [600.0 + 1000.0 * n + rng.uniform(0.0, 200.0) for n in range(3)]

    def at(now: float) -> Moment:
        rate = 1.8
        for begin in begins:
            since = now - begin
            if 0.0 <= since < 60.0:
                rate = 1.8 * (1 + 4 * since / 60.0)
            elif 60.0 <= since < 420.0:
                rate = 9.0
            elif 420.0 <= since < 480.0:
                rate = 1.8 * (5 - 4 * (since - 420.0) / 60.0)
        return Moment(rate, _CHAT)

    return at


def _shift(_rng: random.Random) -> Course:
    def at(now: float) -> Moment:
        share = 1.0 / (1.0 + math.exp(-(now - SECONDS / 2) / 300.0))
        return Moment(5.0 + 3.0 * share, {LONG: 1.0 - share, WRITE: share})

    return at


def _steady(_rng: random.Random) -> Course:
    return lambda _: Moment(6.0, _CHAT)


_COURSES: Mapping[str, Callable[[random.Random], Course]] = MappingProxyType(
    {"diurnal": _diurnal, "bursts": _bursts, "shift": _shift, "steady": _steady, "batch": _bursts}
)
DAYS = tuple(_COURSES)
_PEAK = 14.0
_MOST_TIMES = 100.0
_BATCH_RATE = 1.2


class Day(NamedTuple):
    workload: Workload
    batch: frozenset[int]
    """Numbers of the latency-tolerant requests."""


def read_day(text: str) -> tuple[str, float]:
    """Name and times of its traffic, from ``NAME`` or ``NAME@TIMES``. Raises `ConfigError`."""
    name, _, times = text.partition("@")
    if name not in DAYS:
        raise ConfigError(f"{DAY}{text}: there is no such day: it is one of {', '.join(DAY + d for d in DAYS)}")
    try:
        found = float(times) if times else 1.0
    except ValueError:
        found = 0.0
    if not 0.0 < found <= _MOST_TIMES:
        raise ConfigError(f"{DAY}{text}: write how many times its traffic, up to {_MOST_TIMES:g}, like {DAY}{name}@3")
    return name, found


def make_day(text: str, seed: int = 1) -> Day:
    """``NAME`` or ``NAME@TIMES``. Raises `ConfigError`."""
    name, times = read_day(text)
    rng = random.Random(f"day/{name}/{seed}")
    course = _COURSES[name](rng)
    shared: dict[Kind, list[int]] = {}
    found: list[tuple[Request, bool]] = []
    fresh = 0

    def ask(at: float, kind: Kind) -> Request:
        nonlocal fresh
        prompt = max(32, round(kind.prompt * rng.lognormvariate(-0.125, 0.5)))
        output = max(2, round(kind.output * rng.lognormvariate(-0.125, 0.5)))
        common = shared.setdefault(kind, [])
        if len(common) < kind.shared // BLOCK:
            common.extend(range(fresh, fresh + kind.shared // BLOCK))
            fresh += kind.shared // BLOCK
        own = prompt // BLOCK
        blocks = [*common, *range(fresh, fresh + own)]
        fresh += own
        return Request(number=0, at=at, prompt=len(common) * BLOCK + prompt, output=output, blocks=blocks)

    at = 0.0
    while (at := at + rng.expovariate(times * _PEAK)) < SECONDS:
        moment = course(at)
        if rng.random() < moment.rate / _PEAK:
            kinds = list(moment.mix)
            kind = rng.choices(kinds, [moment.mix[each] for each in kinds])[0]
            found.append((ask(at, kind), False))
    if name == "batch":
        at = 0.0
        while (at := at + rng.expovariate(times * _BATCH_RATE)) < SECONDS - 600.0:
            found.append((ask(at, DOCUMENT), True))
    found.sort(key=lambda pair: pair[0].at)
    requests = numbered(request for request, _ in found)
    batch = frozenset(number for number, (_, tolerant) in enumerate(found) if tolerant)
    return Day(Workload(name=text, block_size=BLOCK, requests=requests), batch)
