"""Profile: filters, weighted scorers and a picker, run over one leg's candidates. PURE.

A plugin that raises, or answers with the wrong number of scores or with NaN, is skipped for that request and
reported: a bug in a plugin costs its opinion, never the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from router.core import Candidate, Leg
from router.scheduling.load import loads
from router.scheduling.plugins import Context, Filter, Picker, Scorer

P = TypeVar("P")

PluginFailed = Callable[[str, Leg, Exception], None]
"""Told the plugin's name, the leg and the exception when a plugin is skipped. It must not raise."""

ScoreTable = dict[str, dict[str, float]]
"""Endpoint id -> plugin name -> weighted score."""


class Named(msgspec.Struct, Generic[P], frozen=True):
    """A plugin under the name that the configuration gives it."""

    name: str
    plugin: P


class Weighted(msgspec.Struct, frozen=True):
    name: str
    plugin: Scorer
    weight: float


class DrainedError(Exception):
    """A filter left nobody. `saturated`: because all are busy, not because nobody is eligible."""

    def __init__(self, filter_name: str, of: int, saturated: bool) -> None:
        super().__init__(filter_name)
        self.filter_name = filter_name
        self.of = of
        self.saturated = saturated


class Profile:
    """Immutable once built."""

    __slots__ = ("_failed", "_filters", "_leg", "_picker", "_scorers")

    def __init__(
        self,
        leg: Leg,
        filters: Sequence[Named[Filter]],
        scorers: Sequence[Weighted],
        picker: Named[Picker],
        failed: PluginFailed,
    ) -> None:
        self._leg = leg
        self._filters = tuple(
            (
                step.name,
                step.plugin,
                bool(getattr(step.plugin, "saturation", False)),
                bool(getattr(step.plugin, "preference", False)),
            )
            for step in filters
        )
        self._scorers = tuple((step.name, step.plugin, step.weight) for step in scorers if step.weight > 0.0)
        self._picker = picker
        self._failed = failed

    def run(
        self, context: Context, candidates: Sequence[Candidate], table: ScoreTable | None = None
    ) -> Sequence[Candidate]:
        """The candidates that pass, best first; behind them those that only a preference dropped.

        `candidates` must not be empty. `table`, when given, receives the scores. Raises `DrainedError`.
        """
        spare: list[Candidate] = []
        kept = self._filter(context, candidates, spare)
        picked = self._pick(context, kept, self._score(context, kept, table))
        return [*picked, *_least_loaded_first(spare)] if spare else picked

    def _filter(self, context: Context, candidates: Sequence[Candidate], spare: list[Candidate]) -> Sequence[Candidate]:
        for name, plugin, saturation, preference in self._filters:
            try:
                kept = plugin.filter(context, candidates)
                count = len(kept)
            except Exception as error:  # noqa: BLE001 (a third-party plugin)
                self._failed(name, self._leg, error)
                continue
            if count == len(candidates):
                continue
            if preference:
                if count:
                    spare.extend(_dropped(candidates, kept))
                    candidates = kept
                continue
            if not count:
                raise DrainedError(name, len(candidates), saturation)
            candidates = kept
        return candidates

    def _score(self, context: Context, candidates: Sequence[Candidate], table: ScoreTable | None) -> list[float]:
        totals = [0.0] * len(candidates)
        for name, plugin, weight in self._scorers:
            try:
                scores = _checked(plugin.score(context, candidates), len(candidates))
            except Exception as error:  # noqa: BLE001 (a third-party plugin)
                self._failed(name, self._leg, error)
                continue
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
            if table is not None:
                self._note(table, name, weight, candidates, scores)
        return totals

    def _note(
        self, table: ScoreTable, name: str, weight: float, candidates: Sequence[Candidate], scores: Sequence[float]
    ) -> None:
        key = name if self._leg is Leg.DECODE else f"{self._leg}/{name}"
        for candidate, score in zip(candidates, scores, strict=True):
            table.setdefault(candidate.id, {})[key] = weight * score

    def _pick(self, context: Context, candidates: Sequence[Candidate], scores: Sequence[float]) -> Sequence[Candidate]:
        try:
            picked = self._picker.plugin.pick(context, candidates, scores)
            if not 0 < len(picked) <= len(candidates):
                raise ValueError(f"the picker returned {len(picked)} of {len(candidates)} candidates")
        except Exception as error:  # noqa: BLE001 (a third-party plugin)
            self._failed(self._picker.name, self._leg, error)
            order = sorted(range(len(candidates)), key=scores.__getitem__, reverse=True)
            return [candidates[i] for i in order]
        return picked


def _dropped(candidates: Sequence[Candidate], kept: Sequence[Candidate]) -> list[Candidate]:
    ids = {candidate.state.endpoint.id for candidate in kept}
    return [candidate for candidate in candidates if candidate.state.endpoint.id not in ids]


def _least_loaded_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    active = loads(candidates)
    return [candidates[i] for i in sorted(range(len(active)), key=active.__getitem__)]


def _checked(scores: list[float], count: int) -> list[float]:
    """Scores clamped to [0, 1]. Raises ValueError for a wrong count or NaN, TypeError for what is not a number."""
    if len(scores) != count:
        raise ValueError(f"the scorer returned {len(scores)} scores for {count} candidates")
    total = sum(scores)
    if total != total:
        raise ValueError("the scorer returned NaN")
    if min(scores) < 0.0 or max(scores) > 1.0:
        return [min(1.0, max(0.0, score)) for score in scores]
    return scores
