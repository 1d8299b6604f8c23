"""Reuse: how long blocks lie unused until somebody asks for them, from what this router sees, and so what is pushed out
by what is put in a full cache. PURE.

Blocks are followed whoever holds them, by a sample of their hashes that is halved whenever it has grown too large. A
life table over ages, in bins of half an octave, has how many were asked for in a bin and how many passed it.

Say an engine evicts what lay unused for T seconds, and h(T) is the chance a second to be asked for at that age. As long
as a block lies there it has pushed all others one place further: each is evicted a little earlier, and x = T * h(T) of
them are missed, because their turn would have come in between. What is missed is computed again and pushes in its turn:
x * x more, and so on. x is small where blocks lie until nobody asks any more, and small where they are gone long
before. So where memory is short, what fits nowhere goes where others do not fit either, and leaves the rest in peace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import exp, log, log1p, log2

_MOST = 4096
"""Unused blocks that are followed."""
_MEMORY_S = 900.0
_STALE_S = 5.0
"""Between two looks at who passed which age."""
_YOUNGEST_S = 0.5
_ENDS = tuple(_YOUNGEST_S * 2.0 ** (number / 2) for number in range(28))
"""Where the bins end, in seconds; the last after an hour and a half."""
_WIDTH = 0.5 * log(2.0)
_DOUBT = 20.0
"""Who passes each bin before anybody was seen: a prompt or so, whose blocks are all asked for at once."""
_MOST_PUSHED = 0.75
"""`x` at most: beyond, the series is longer than a law for small changes can say."""
_MIX, _SHIFT = 0x9E3779B97F4A7C15, 20


class Reuse:
    """Of one pool. Times are the caller's and never go back."""

    __slots__ = ("_asked", "_at", "_found", "_held", "_mask", "_passed", "_unused")

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._unused: dict[int, float] = {}
        """Block -> since when; the oldest first."""
        self._mask = 0
        self._asked = [0.0] * len(_ENDS)
        self._passed = [0.0] * len(_ENDS)
        self._at: float | None = None
        self._found: Sequence[float] = self._asked

    def follow(self, blocks: Iterable[int]) -> Sequence[int]:
        """Those of a prompt's blocks that are in the sample."""
        mask = self._mask
        return [block for block in blocks if not (block * _MIX >> _SHIFT) & mask]

    def take(self, followed: Sequence[int], now: float) -> None:
        """A request with these blocks was dispatched."""
        held, unused = self._held, self._unused
        for block in followed:
            count = held.get(block, 0)
            held[block] = count + 1
            if not count:
                since = unused.pop(block, None)
                if since is not None:
                    self._ask(since, now)

    def release(self, followed: Sequence[int], now: float) -> None:
        """It ended."""
        held, unused = self._held, self._unused
        for block in followed:
            count = held.pop(block, 0)
            if count > 1:
                held[block] = count - 1
            elif count:
                unused[block] = now
        while len(self._unused) > _MOST:
            self._halve(now)

    def pushed(self, age_s: float, now: float) -> float:
        """Blocks that are missed in the second round and later, for each that is put on an engine that evicts what lay
        unused for `age_s`: the first round is whoever lost his place to it."""
        if self._at is None or now - self._at >= _STALE_S:
            self._look(now)
            self._found = _later_rounds(self._asked, self._seen(now))
        place = 2.0 * log2(age_s / _YOUNGEST_S) + 0.5 if age_s > _YOUNGEST_S else 0.5
        low = int(place)
        last = len(self._found) - 1
        if low >= last:
            return self._found[last]
        part = place - low
        return self._found[low] * (1.0 - part) + self._found[low + 1] * part

    def _seen(self, now: float) -> Sequence[float]:
        """Who passed each bin, and half of who is in it."""
        since = list(self._unused.values())
        below = [bisect_right(since, now - end) for end in _ENDS]
        inside = [len(since) - below[0], *(high - low for high, low in pairwise(below))]
        return [passed + within / 2.0 for passed, within in zip(self._passed, inside, strict=True)]

    def _halve(self, now: float) -> None:
        self._look(now)
        self._mask = 2 * self._mask + 1
        self._unused = {block: self._unused[block] for block in self.follow(self._unused)}
        self._held = {block: self._held[block] for block in self.follow(self._held)}

    def _ask(self, since: float, now: float) -> None:
        """A block unused since then is asked for."""
        passed = 0 if self._at is None or self._at < since else bisect_right(_ENDS, self._at - since)
        ends = bisect_right(_ENDS, now - since)
        for number in range(passed, ends):
            self._passed[number] += 1.0
        if ends < len(_ENDS):
            self._asked[ends] += 1.0

    def _look(self, now: float) -> None:
        """Who passed which age since the last look."""
        before = now if self._at is None else self._at
        since = list(self._unused.values())
        kept = exp((before - now) / _MEMORY_S)
        for number, end in enumerate(_ENDS):
            crossed = bisect_right(since, now - end) - bisect_right(since, before - end)
            self._passed[number] = self._passed[number] * kept + crossed
            self._asked[number] *= kept
        self._at = now


def _later_rounds(asked: Sequence[float], seen: Sequence[float]) -> Sequence[float]:
    """For each bin of ages."""
    chances = [now / (now + later + _DOUBT) for now, later in zip(asked, seen, strict=True)]
    pushed = [-log1p(-chance) / _WIDTH for chance in chances]
    # Over three bins: what is put there is not small, and there are few sessions.
    around = zip([pushed[0], *pushed[:-1]], pushed, [*pushed[1:], pushed[-1]], strict=True)
    smooth = [min((before + 2.0 * at + after) / 4.0, _MOST_PUSHED) for before, at, after in around]
    return [x * x / (1.0 - x) for x in smooth]
