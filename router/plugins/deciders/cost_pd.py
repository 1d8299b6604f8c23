"""cost-pd-decider: prefill elsewhere when that is cheaper, and on the pair of endpoints for which it is. PURE.

Remote iff  cost(prefill on p) + cost(decode on d, transfer included)  <  cost(all on d'). d' is whom the decode profile
chose, d the cheapest to hand over to, p whom the prefill profile chooses for d; the sums include what a prefill puts on
those who come later and on the answers under way. The costs are those of `predicted-latency-scorer`, the transfer's
time is learnt for each decode endpoint. Reasons:

    pd                   elsewhere is cheaper
    pd-cached            the decode endpoint holds at least half of the prompt
    pd-prefill-busy      it would be, but for what the prefill endpoint has to do first
    pd-transfer-dearer   it would be, but for the transfer
    pd-short             too little to compute to be worth another endpoint
    pd-no-prefiller      no other endpoint can prefill
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from router.core import Candidate, Leg
from router.plugins.scorers.predicted_latency import CostParameters
from router.scheduling.cost import Terms, ask, cheapest_handed, comparison, handed, local
from router.scheduling.plugins import Context, Verdict


class CostPdDecider(CostParameters, frozen=True):
    interference: Annotated[float, Meta(ge=0)] = 0.1
    """More than the scorer's: here it is not where a prefill disturbs, but whether it does."""

    def decide(self, context: Context, decode: Candidate) -> Verdict:
        weights, now, prompt = self.weights, context.now, context.prompt
        decoders = context.decoders or (decode,)
        what = ask(context.request, prompt, Leg.DECODE, decoders)
        there = decoders[cheapest_handed(what, decoders, weights, now)]
        helpers = context.rank_prefillers(there)
        if not helpers:
            return Verdict(False, "pd-no-prefiller")
        leg = ask(context.request, prompt, Leg.PREFILL, helpers)
        # Where few are prefilled because they go elsewhere, a prompt delays those who then cannot stay.
        rate = max(what.delayed_per_s, leg.delayed_per_s)
        what, leg = replace(what, delayed_per_s=rate), replace(leg, delayed_per_s=rate)
        here = local(what, decode, weights, now)
        ahead, hand_over = local(leg, helpers[0], weights, now), handed(what, there, weights, now)
        gain = here.total - ahead.total - hand_over.total
        compared = comparison(helpers[0], ahead, there, hand_over, decode, here)
        if gain > 0:
            return Verdict(True, "pd", there, compared)
        cached = decode.match.blocks * prompt.block_size * 2 >= prompt.token_count > 0
        return Verdict(False, "pd-cached" if cached else _why(gain, ahead, hand_over), compared=compared)


def _why(gain: float, ahead: Terms, hand_over: Terms) -> str:
    # What the queue there costs: its wait, and the part of the delay that is due to it.
    busy = ahead.pending + ahead.memory
    if ahead.pending:
        busy += ahead.delay * ahead.pending / (ahead.pending + 0.5 * ahead.own)
    if gain + busy > 0:
        return "pd-prefill-busy"
    return "pd-transfer-dearer" if gain + hand_over.pending > 0 else "pd-short"
