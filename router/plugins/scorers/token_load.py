"""token-load-scorer: the fewer uncached prompt tokens an endpoint would have to compute first, the better. PURE.

``1 - min(1, (in-flight uncached tokens + own uncached tokens) / threshold)``. llm-d's scorer looks ahead in the same
way: what this prompt itself would add depends on the endpoint's match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class TokenLoadScorer(Parameters, frozen=True):
    queue_threshold_tokens: Annotated[int, Meta(gt=0)] = 4_194_304

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        tokens, block = context.prompt.token_count, context.prompt.block_size
        threshold = self.queue_threshold_tokens
        scores: list[float] = []
        for candidate in candidates:
            own = tokens - candidate.match.blocks * block
            ahead = candidate.inflight.prefill_tokens + (own if own > 0 else 0)
            scores.append(1.0 - ahead / threshold if ahead < threshold else 0.0)
        return scores
