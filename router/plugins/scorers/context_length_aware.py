"""context-length-aware: endpoints labelled for prompts of this length; a scorer, and on request a filter. PURE.

The label holds a range of prompt tokens, ``min-max``. Within its range an endpoint scores above 0.3 and up to 1, the
narrower the range the higher; outside below 0.3, the nearer the higher; without a (readable) label 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import NEUTRAL
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

_IN_RANGE = 0.3
"""The lowest score of an endpoint in range, and more than the highest of one outside."""


class ContextLengthAware(Parameters, frozen=True):
    label: str = "llm-d.ai/context-length-range"
    enable_filtering: bool = False
    """Also drop, as a filter, endpoints whose range does not hold the prompt."""

    def filter(self, context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        if not self.enable_filtering:
            return candidates
        tokens = context.prompt.token_count
        ranges = [_range(candidate.state.endpoint.labels.get(self.label)) for candidate in candidates]
        return [
            candidate
            for candidate, span in zip(candidates, ranges, strict=True)
            if span is None or span[0] <= tokens <= span[1]
        ]

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        tokens = context.prompt.token_count
        return [_score(tokens, _range(candidate.state.endpoint.labels.get(self.label))) for candidate in candidates]


def _range(label: str | None) -> tuple[int, int] | None:
    low, dash, high = (label or "").partition("-")
    if not (dash and low.isdecimal() and high.isdecimal()):
        return None
    return int(low), int(high)


def _score(tokens: int, span: tuple[int, int] | None) -> float:
    if span is None:
        return NEUTRAL
    low, high = span
    if low <= tokens <= high:
        return _IN_RANGE + (1.0 - _IN_RANGE) * (1 + tokens) / (1 + tokens + high - low)
    away = low - tokens if tokens < low else tokens - high
    return _IN_RANGE * (1 + tokens) / (1 + tokens + away)
