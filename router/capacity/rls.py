"""Rls: a linear law fitted while its samples come, by recursive least squares with forgetting. PURE.

Relative errors are fitted: each sample is divided by the larger of what it says and what was expected of it, so that
a prompt of 100 tokens counts like one of 100,000. An error beyond three times the usual is cut down to that (Huber),
so that one pause of an engine moves nothing; several in a row to the same side are a change of the engine, and the law
is learnt anew from there. Old samples are forgotten at `forgetting` a sample; what is known of a
direction in which no samples come is not forgotten beyond the prior. Coefficients never fall below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

_CUT = 3.0
_NOISE = 0.15
"""Relative error of a sample that is taken for normal before any has been seen."""
_LEAST_NOISE = 0.02
_SMOOTHING = 0.05
_CHANGED = 6
"""Samples in a row cut down on the same side after which the engine is taken to have changed."""


class Rls:
    """``y = x . theta``. The prior is `theta`, each coefficient uncertain by `spread` (its own, where a list is given)
    times itself."""

    __slots__ = ("_cap", "_covariance", "_floor", "_forgetting", "_noise", "_run", "_size", "count", "theta")

    def __init__(
        self,
        theta: Sequence[float],
        *,
        spread: float | Sequence[float] = 1.5,
        forgetting: float = 0.99,
        floor: float = 1e-6,
    ) -> None:
        """`floor`: samples of less than that have an absolute error of it, in units of y."""
        self.theta = list(theta)
        self.count = 0
        self._size = len(self.theta)
        spreads = [spread] * self._size if isinstance(spread, float) else spread
        self._cap = [(each * value) ** 2 for each, value in zip(spreads, theta, strict=True)]
        self._covariance = [
            [self._cap[row] if row == column else 0.0 for column in range(self._size)] for row in range(self._size)
        ]
        self._noise = _NOISE
        self._run = 0
        self._forgetting = forgetting
        self._floor = floor

    def predict(self, x: Sequence[float]) -> float:
        return float(sum(map(mul, x, self.theta)))

    def update(self, x: Sequence[float], y: float) -> float:
        """Takes in one sample of positive y. Returns its relative error before it was."""
        expected = self.predict(x)
        scale = max(y, expected, self._floor)
        row = [value / scale for value in x]
        error = (y - expected) / scale
        covariance, size = self._covariance, self._size
        gain = [sum(map(mul, line, row)) for line in covariance]
        uncertain = sum(map(mul, row, gain))
        if uncertain < 0.0:
            # Rounding over many samples in one direction has made it no covariance any more: it is learnt anew.
            covariance = self._restart()
            gain = [sum(map(mul, line, row)) for line in covariance]
            uncertain = sum(map(mul, row, gain))
        noise = self._noise
        total = noise * noise + uncertain
        most = _CUT * math.sqrt(total)
        cut = max(-most, min(most, error))
        self._count_run(0 if cut == error else 1 if error > 0 else -1)
        self.theta = [value + g * cut / total for value, g in zip(self.theta, gain, strict=True)]
        keep = 1.0 / self._forgetting
        for i in range(size):
            line, g = covariance[i], gain[i] / total
            for j in range(i, size):
                # Mirrored, so that rounding cannot make it lopsided.
                line[j] = covariance[j][i] = (line[j] - g * gain[j]) * keep
        if min(self.theta) < 0.0:
            self._lift()
        for i, cap in enumerate(self._cap):
            if covariance[i][i] > cap:
                shrink = math.sqrt(cap / covariance[i][i])
                for j in range(size):
                    covariance[i][j] *= shrink
                    covariance[j][i] *= shrink
        # While the law itself is uncertain an error says little of the noise.
        if uncertain < noise * noise:
            self._noise += _SMOOTHING * (max(min(1.25 * abs(error), 1.0), _LEAST_NOISE) - noise)
        self.count += 1
        return error

    def _count_run(self, side: int) -> None:
        self._run = self._run + side if side and self._run * side >= 0 else side
        if abs(self._run) >= _CHANGED:
            self._run, self._noise = 0, _NOISE
            self._restart()

    def _restart(self) -> list[list[float]]:
        """As uncertain as the prior was."""
        self._covariance = [
            [cap if row == column else 0.0 for column in range(self._size)] for row, cap in enumerate(self._cap)
        ]
        return self._covariance

    def _lift(self) -> None:
        """Negative coefficients to 0, the others moved along as the samples have tied them together."""
        theta, covariance = self.theta, self._covariance
        for i in range(self._size):
            if theta[i] < 0.0 < covariance[i][i]:
                shift = theta[i] / covariance[i][i]
                for j, line in enumerate(covariance):
                    theta[j] -= line[i] * shift
        self.theta = [max(value, 0.0) for value in theta]

    def uncertainty(self, x: Sequence[float]) -> float:
        """Relative standard deviation of what is predicted for `x`, the samples' own noise not counted."""
        expected = self.predict(x)
        if expected <= 0.0:
            return math.inf
        gain = [sum(map(mul, line, x)) for line in self._covariance]
        return math.sqrt(max(sum(map(mul, x, gain)), 0.0)) / expected

    def confidence(self, x: Sequence[float]) -> float:
        """0 (the prior alone) to 1, for predictions at `x`: half at a relative deviation of a tenth."""
        if not self.count:
            return 0.0
        return 1.0 / (1.0 + (self.uncertainty(x) / 0.1) ** 2)
