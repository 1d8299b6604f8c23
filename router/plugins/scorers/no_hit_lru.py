"""no-hit-lru-scorer: spread prompts that nobody has cached. PURE.

llm-d ranks endpoints by how long ago they last took a cold prompt, which takes a memory that every router would keep
for itself. Here the rank, 1 down to 0, is the rendezvous order for the prompt's first block: cold prompts spread as
evenly, the same prompt asked twice before it is cached goes to the same endpoint, and routers agree. A prompt that
somebody has cached, or that has no full block, scores 0.5 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.load import NEUTRAL
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context
from router.scheduling.rendezvous import weight


class NoHitLruScorer(Parameters, frozen=True):
    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        hashes = context.prompt.block_hashes
        count = len(candidates)
        if count < 2 or not hashes or any(candidate.match.blocks for candidate in candidates):
            return [NEUTRAL] * count
        first = hashes[0]
        order = sorted(range(count), key=lambda i: weight(first, candidates[i].state.endpoint.id), reverse=True)
        scores = [0.0] * count
        for rank, i in enumerate(order):
            scores[i] = 1.0 - rank / (count - 1)
        return scores
