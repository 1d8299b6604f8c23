"""Dynamo's linear cost: prefill blocks still to compute, weighted, plus active blocks. PURE.

``weight * (active prefill + new uncached blocks) + active blocks with this request's`` at temperature 0. Its default
weight is 1; 4 did better on the public traces.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.replay.policies.base import uncached
from router.core import Candidate
from router.scheduling.plugins import Context


class DynamoLinear:
    def __init__(self, weight: float) -> None:
        self._weight = weight

    def __call__(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        tokens = context.prompt.token_count
        weight = self._weight
        return [
            weight * (c.inflight.prefill_tokens + uncached(context, c)) + c.inflight.tokens + tokens for c in candidates
        ]
