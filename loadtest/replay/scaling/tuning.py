"""Tuning: the knob with which a law does best on the day of tuning, in as few runs as find it.

Knobs are listed from the most generous to the leanest, and what a law attains and takes is held to fall along the
list: then halving finds the place in a few runs. Where laws are compared at the objective, the leanest knob that
attains it is taken; where they are compared at equal engine-hours, the one that attains most within them. Of a law with
a knob for each role the two are sought together: what one role spares the other may need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

_BACK = 2
"""Places by which the first role is made more generous than it must be, to see what the other then spares."""


class Ran(Protocol):
    """What one run gave."""

    @property
    def attained(self) -> float: ...

    @property
    def engine_hours(self) -> float: ...


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """One law on one day."""

    law: str
    run: Callable[[str], Ran]
    """By the law's name with its knob; asking twice costs nothing."""
    attainment: float
    budget: float | None = None
    """Engine-hours that may be taken; None: laws are compared at the objective."""

    def alone(self, knobs: Sequence[float]) -> str:
        """One knob over all roles."""
        return self._of([f"{self.law}@{knob:g}" for knob in knobs])

    def apart(self, prefill: Sequence[float], decode: Sequence[float]) -> str:
        """A knob for each role."""
        return self._level(prefill, decode) if self.budget is not None else self._leanest(prefill, decode)

    def _of(self, names: Sequence[str]) -> str:
        if self.budget is None:
            return names[last(len(names), lambda place: self._attains(names[place])) or 0]
        return names[min(self._over(names) + 1, len(names) - 1)]

    def _attains(self, name: str) -> bool:
        return self.run(name).attained >= self.attainment

    def _over(self, names: Sequence[str]) -> int:
        """The last place that takes more than the budget, -1 where none does."""
        assert self.budget is not None
        budget = self.budget
        place = last(len(names), lambda place: self.run(names[place]).engine_hours > budget)
        return -1 if place is None else place

    def _leanest(self, prefill: Sequence[float], decode: Sequence[float]) -> str:
        """First one role beside the most generous of the other, then the other; the same from some places before."""

        def name(first: int, second: int) -> str:
            return f"{self.law}@{prefill[first]:g}/{decode[second]:g}"

        place = last(len(prefill), lambda first: self._attains(name(first, 0)))
        if place is None:
            return name(0, 0)
        second = last(len(decode), lambda second: self._attains(name(place, second))) or 0
        found = [name(place, second)]
        for first in range(place - 1, max(place - _BACK, 0) - 1, -1):
            # With more of the one, at least as little of the other is enough.
            while second + 1 < len(decode) and self._attains(name(first, second + 1)):
                second += 1
            found.append(name(first, second))
        return min(found, key=lambda each: self.run(each).engine_hours)

    def _level(self, prefill: Sequence[float], decode: Sequence[float]) -> str:
        """From where both knobs are as far along their lists, one role is given what the other spares."""
        assert self.budget is not None
        budget = self.budget

        def of(first: int) -> list[str]:
            return [f"{self.law}@{prefill[first]:g}/{knob:g}" for knob in decode]

        def worth(first: int) -> float:
            ran = self.run(self._of(of(first)))
            return ran.attained if ran.engine_hours <= budget else -ran.engine_hours

        places = max(len(prefill), len(decode))
        both = [(place * len(prefill) // places, place * len(decode) // places) for place in range(places)]
        start = both[min(self._over([of(first)[second] for first, second in both]) + 1, places - 1)][0]
        return self._of(of(climbed(len(prefill), start, worth)))


def last(count: int, holds: Callable[[int], bool]) -> int | None:
    """The last place of `count` at which it holds, when it holds up to there and not beyond; None when nowhere."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return None if low < 0 else low


def climbed(count: int, start: int, worth: Callable[[int], float], step: int = 2) -> int:
    """The place of `count` with the greatest worth, when it rises up to there and falls beyond: uphill from `start`, at
    last in single steps."""
    best = start
    while step:
        tried = [place for place in (best - step, best + step) if 0 <= place < count]
        better = max(tried, key=worth, default=best)
        if worth(better) > worth(best):
            best = better
        else:
            step //= 2
    return best
