"""max-score-picker: the highest score first, ties spread without state. PURE.

Ties are the rule when prefixes are cold, and a burst of them piles onto one endpoint if they are broken by order, or
scatters one prefix over all endpoints if they are broken by chance. So the owner of a tie is the rendezvous winner
for the hash of the first block that none of the tied holds: cold prefixes spread, the same prefix always goes to the
same endpoint, and routers that do not talk agree. A prompt without such a block goes to the least loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.load import loads
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context
from router.scheduling.rendezvous import weight

_SAME = 1e-9
"""Scores this close are equal: sums of the same terms in another order differ by rounding."""


class MaxScorePicker(Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, Meta(ge=1)] | None = None
    """How many to return, fallbacks included; None is all."""

    def pick(self, context: Context, candidates: Sequence[Candidate], scores: Sequence[float]) -> Sequence[Candidate]:
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        floor = scores[order[0]] - _SAME
        tied = 1
        while tied < len(order) and scores[order[tied]] >= floor:
            tied += 1
        if tied > 1:
            order[:tied] = _spread(context, candidates, order[:tied])
        return [candidates[i] for i in order[: self.max_num_of_endpoints]]


def _spread(context: Context, candidates: Sequence[Candidate], tied: Sequence[int]) -> list[int]:
    hashes = context.prompt.block_hashes
    first_uncached = max(candidates[i].match.blocks for i in tied)
    if first_uncached < len(hashes):
        key = hashes[first_uncached]
        weights = [weight(key, candidates[i].state.endpoint.id) for i in tied]
        return [i for _, i in sorted(zip(weights, tied, strict=True), reverse=True)]
    busy = loads([candidates[i] for i in tied])
    chance = context.rng.random
    return [i for _, _, i in sorted((load, chance(), i) for load, i in zip(busy, tied, strict=True))]
