"""prefix-cache-affinity-filter: stay with the endpoints that hold the prompt, until they are too busy. PURE.

llm-d's "sticky until saturated": keep the endpoints that hold at least `affinityThreshold` of the prompt's blocks, all
if there are none. Let go of them when the least busy of them has more prompt tokens to compute than the least busy
other one, by more than `maxTTFTPenaltyMs` at `peakPrefillThroughput` tokens/s, or by more than
`maxTokensInFlightPenalty` tokens; 0 switches either test off. It never leaves nobody.

Use it before a load scorer and without a weighted prefix-cache-scorer, which would hold requests where this filter
has just let them go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class PrefixCacheAffinityFilter(Parameters, frozen=True):
    preference: ClassVar[bool] = True

    affinity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.80
    max_ttft_penalty_ms: Annotated[float, Meta(ge=0)] = msgspec.field(default=18_000.0, name="maxTTFTPenaltyMs")
    max_tokens_in_flight_penalty: Annotated[int, Meta(ge=0)] = 0
    peak_prefill_throughput: Annotated[float, Meta(gt=0)] = 15_928.0
    """Prompt tokens/s of one endpoint; llm-d's default is its figure for a 32B model on two H100."""
    exploration_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ttft_source: Literal["prefillThroughput"] = "prefillThroughput"

    def filter(self, context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        needed = self.affinity_threshold * len(context.prompt.block_hashes)
        if not context.prompt.block_hashes:
            return candidates
        warm = [candidate for candidate in candidates if candidate.match.blocks >= needed]
        if not warm or len(warm) == len(candidates):
            return candidates
        if self.exploration_probability and context.rng.random() < self.exploration_probability:
            return candidates
        return candidates if self._too_busy(warm, candidates, needed) else warm

    def _too_busy(self, warm: Sequence[Candidate], candidates: Sequence[Candidate], needed: float) -> bool:
        cold = min(c.inflight.prefill_tokens for c in candidates if c.match.blocks < needed)
        ahead = min(c.inflight.prefill_tokens for c in warm) - cold
        return 0 < self.max_ttft_penalty_ms < ahead / self.peak_prefill_throughput * 1000 or (
            0 < self.max_tokens_in_flight_penalty < ahead
        )
