"""The clairvoyant bound on short windows: the best placing of the next few dozen requests that a search finds. PURE.

It knows every arrival and length of the window and the engines' true state at its begin, and tries placements in full:
one request after the other is moved to where the window's total TTFT is least, until no single move helps; then some
are taken out together, often those that share a prefix, and put back one by one. Engines do not influence each other,
so a move costs the replay of two. What is found is a placement that exists, not a proof that there is none better; on
windows small enough to enumerate it is nearly always the best one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import msgspec

from loadtest.replay.cache import Change
from loadtest.replay.engine import Engine
from loadtest.replay.job import Job
from loadtest.replay.results import Outlook
from loadtest.replay.workload import Request

_PASSES = 6
_ROUNDS = 16
_LESS = 1e-9


class Arrival(msgspec.Struct, frozen=True):
    at: float
    request: Request


class Moment(msgspec.Struct, frozen=True):
    """The engines as they are when a window begins; nobody else has them."""

    number: int
    """Of the window's first request."""
    engines: Mapping[str, Engine]


class _Clock:
    """Listens to an engine's twin: sums the TTFT of a window's own requests."""

    def __init__(self) -> None:
        self.total = 0.0
        self.left = 0

    def first_token(self, job: Job, now: float) -> None:
        if isinstance(job.tag, Arrival):
            self.total += now - job.tag.at
            self.left -= 1

    def finished(self, job: Job, now: float) -> None: ...

    def load(self, engine: Engine, job: Job, now: float) -> None: ...

    def changed(self, engine: Engine, changes: list[Change], now: float) -> None: ...


def total_ttft(engine: Engine, arrivals: Sequence[Arrival], *, cache_answers: bool = False) -> float:
    """Of these arrivals, by time, if this engine takes them all."""
    clock = _Clock()
    clock.left = len(arrivals)
    if not arrivals:
        return 0.0
    twin = engine.copy(clock)
    for arrival in arrivals:
        while twin.due <= arrival.at:
            twin.fire()
        request = arrival.request
        answer = request.answer_blocks if cache_answers else ()
        twin.submit(Job(arrival, request.blocks, request.prompt, request.output, output_blocks=answer), arrival.at)
    while clock.left and twin.due < math.inf:
        twin.fire()
    return clock.total if not clock.left else math.inf


def look_ahead(
    moment: Moment,
    arrivals: Sequence[Arrival],
    placed: Sequence[str],
    rng: random.Random,
    *,
    cache_answers: bool = False,
) -> Outlook:
    """`placed`: where the policy sent each of the arrivals. None of them may be empty."""
    search = _Search(moment.engines, arrivals, list(placed), cache_answers)
    chosen = search.total()
    for _ in range(_PASSES):
        order = list(range(len(arrivals)))
        rng.shuffle(order)
        if not sum(map(search.improve, order)):
            break
    for _ in range(_ROUNDS):
        search.rearrange(search.kin(rng) if rng.random() < 0.5 else search.some(rng))
    return Outlook(chosen / len(arrivals), min(search.total(), chosen) / len(arrivals))


class _Search:
    def __init__(
        self, engines: Mapping[str, Engine], arrivals: Sequence[Arrival], placed: list[str], cache_answers: bool
    ) -> None:
        self._engines = engines
        self._arrivals = arrivals
        self._placed: list[str | None] = [*placed]
        self._answers = cache_answers
        self._totals = {name: self._evaluate(name, self._on(name)) for name in engines}

    def total(self) -> float:
        return math.fsum(self._totals.values())

    def improve(self, number: int) -> bool:
        """Moves one request to where the total is least; whether that made it less."""
        before = self.total()
        self._take_out(number)
        self._put_in(number)
        return self.total() < before - _LESS

    def rearrange(self, numbers: Sequence[int]) -> None:
        """Takes several out and puts them back one by one, each where the total is least; not if that is no gain."""
        before, placed, totals = self.total(), self._placed.copy(), self._totals.copy()
        for number in numbers:
            self._take_out(number)
        for number in numbers:
            self._put_in(number)
        if self.total() > before - _LESS:
            self._placed, self._totals = placed, totals

    def some(self, rng: random.Random) -> list[int]:
        count = len(self._arrivals)
        return sorted(rng.sample(range(count), min(rng.randint(2, 12), count)))

    def kin(self, rng: random.Random) -> list[int]:
        """One request and those that share the first half of its prompt."""
        one = rng.choice(self._arrivals).request.blocks
        middle = len(one) // 2
        return [
            number
            for number, arrival in enumerate(self._arrivals)
            if arrival.request.blocks[middle : middle + 1] == one[middle : middle + 1]
        ]

    def _take_out(self, number: int) -> None:
        home = self._placed[number]
        if home is not None:
            self._placed[number] = None
            self._totals[home] = self._evaluate(home, self._on(home))

    def _put_in(self, number: int) -> None:
        best, where, total = math.inf, "", 0.0
        for name in self._engines:
            there = self._evaluate(name, sorted([*self._on(name), number]))
            if there - self._totals[name] < best - _LESS:
                best, where, total = there - self._totals[name], name, there
        self._placed[number] = where
        self._totals[where] = total

    def _on(self, name: str) -> list[int]:
        return [number for number, place in enumerate(self._placed) if place == name]

    def _evaluate(self, name: str, numbers: Sequence[int]) -> float:
        arrivals = [self._arrivals[number] for number in numbers]
        return total_ttft(self._engines[name], arrivals, cache_answers=self._answers)
