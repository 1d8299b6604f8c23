"""Comparison of runs with the same seeds: ratios with a bootstrap interval, and regret against a bound. PURE."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from loadtest.replay.results import Result, Run, Window
from router.observability.events import Outcome

_BLOCKS = 12
_DRAWS = 1000


class Ratio(msgspec.Struct, frozen=True):
    """A policy's mean over the base's, and the middle 95 % of what resampling gives."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """The interval excludes 1."""
        return self.high < 1.0 or self.low > 1.0


def ttft(result: Result) -> float | None:
    return result.ttft_s if result.outcome is Outcome.OK else None


def e2e(result: Result) -> float | None:
    return result.e2e_s if result.outcome is Outcome.OK else None


def ratio(
    runs: Sequence[Run], base: Sequence[Run], value: Callable[[Result], float | None], window: Window
) -> Ratio | None:
    """Paired by seed and request: seeds are drawn with replacement, and within each a dozen stretches of the trace, so
    that requests that met the same queue stay together. None where nothing can be compared."""
    partners = {run.seed: run for run in base}
    pairs = [_stretches(run, partners[run.seed], value, window) for run in runs if run.seed in partners]
    pairs = [stretches for stretches in pairs if stretches]
    if not pairs:
        return None
    own, other = (math.fsum(part[side] for stretches in pairs for part in stretches) for side in (0, 1))
    if not other:
        return None
    rng = random.Random(f"bootstrap/{len(pairs)}")
    drawn: list[float] = []
    for _ in range(_DRAWS):
        above = below = 0.0
        for stretches in rng.choices(pairs, k=len(pairs)):
            for part in rng.choices(stretches, k=len(stretches)):
                above += part[0]
                below += part[1]
        if below:
            drawn.append(above / below)
    drawn.sort()
    return Ratio(own / other, drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn))])


def _stretches(
    run: Run, base: Run, value: Callable[[Result], float | None], window: Window
) -> list[tuple[float, float]]:
    theirs = {result.number: value(result) for result in base.results if window.counts(result)}
    both: list[tuple[int, float, float]] = []
    for result in run.results:
        mine, other = value(result), theirs.get(result.number)
        if mine is not None and other is not None and window.counts(result):
            both.append((result.number, mine, other))
    both.sort()
    length = max(math.ceil(len(both) / _BLOCKS), 1)
    parts = [both[start : start + length] for start in range(0, len(both), length)]
    return [(math.fsum(p[1] for p in part), math.fsum(p[2] for p in part)) for part in parts]


_WORTH = 0.02
"""Where the worst is nearer to the bound than that share of it, there is nothing to win, and its share says nothing."""


def regret(mean: float, bound: float, worst: float) -> float | None:
    """0: as good as the bound, 1: as bad as `worst`, which is round robin's mean. None when they hardly differ."""
    return (mean - bound) / (worst - bound) if worst > bound * (1 + _WORTH) else None
