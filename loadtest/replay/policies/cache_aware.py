"""cache_aware of the SGLang family (sglang-router, SMG, vllm-router), with their command line's defaults. PURE.

Imbalanced (max - min in flight > 64 and max > 1.5 min): least loaded. Else the best prefix match if it covers more than
0.3 of the prompt, else the smallest tree: the one that the fewest distinct tokens were sent to. The match is the exact
index's, which the original does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.replay.policies.base import uncached
from router.core import Candidate
from router.scheduling.plugins import Context

_ABSOLUTE, _RELATIVE, _THRESHOLD = 64, 1.5, 0.3


class CacheAware:
    def __init__(self) -> None:
        self._tree: dict[str, int] = {}

    def __call__(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        costs = self._costs(context, candidates)
        # Ties go to the first, so that the tree that grows is that of the endpoint that is chosen.
        chosen = min(range(len(costs)), key=costs.__getitem__)
        costs[chosen] -= 0.5
        name = candidates[chosen].id
        self._tree[name] = self._tree.get(name, 0) + uncached(context, candidates[chosen])
        return costs

    def _costs(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        load = [float(candidate.inflight.requests) for candidate in candidates]
        if max(load) - min(load) > _ABSOLUTE and max(load) > _RELATIVE * min(load):
            return load
        best = max(candidate.match.blocks for candidate in candidates)
        if best * context.prompt.block_size > _THRESHOLD * context.prompt.token_count:
            return [-float(candidate.match.blocks) for candidate in candidates]
        return [float(self._tree.get(candidate.id, 0)) for candidate in candidates]
