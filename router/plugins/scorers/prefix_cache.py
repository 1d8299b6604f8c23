"""prefix-cache-scorer: the share of the prompt's blocks that the endpoint holds. PURE.

llm-d's formula: ``w * min(1, matched tokens / scale)^2 + (1 - w) * matched blocks / blocks``, with w 0 by default.
The first term values long matches by what they save, whatever share of the prompt they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class PrefixCacheScorer(Parameters, frozen=True):
    match_length_weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[float, Meta(gt=0)] = 8192.0

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """0 for everyone when the prompt has no full block."""
        prompt = context.prompt
        blocks = len(prompt.block_hashes)
        if not blocks:
            return [0.0] * len(candidates)
        share = self.match_length_weight
        if not share:
            return [candidate.match.blocks / blocks for candidate in candidates]
        scale = prompt.block_size / self.match_length_scale_tokens
        return [
            share * min(1.0, candidate.match.blocks * scale) ** 2 + (1.0 - share) * candidate.match.blocks / blocks
            for candidate in candidates
        ]
