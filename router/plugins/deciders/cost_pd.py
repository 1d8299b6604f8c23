"""cost-pd-decider: prefill elsewhere when that is cheaper, and on the pair of endpoints for which it is. PURE.

Remote iff  cost(prefill on p) + transfer + cost(decode on d)  <  cost(all on d'), each at its best endpoint and with
what a local prefill puts on the answers under way there. The costs are those of `predicted-latency-scorer`; the
transfer's time is learnt for each decode endpoint. Reasons:

    pd                   elsewhere is cheaper
    pd-cached            the decode endpoint holds at least half of the prompt
    pd-prefill-busy      it would be, but for what the prefill endpoints have to do first
    pd-transfer-dearer   it would be, but for the transfer
    pd-short             too little to compute to be worth another endpoint
    pd-no-prefiller      no other endpoint can prefill
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from router.core import Candidate, Leg
from router.plugins.scorers.predicted_latency import CostParameters
from router.scheduling.cost import Terms, ask, handed, local
from router.scheduling.plugins import Context, Verdict


class CostPdDecider(CostParameters, frozen=True):
    interference: Annotated[float, Meta(ge=0)] = 0.2
    """More than the scorer's: here it is not where a prefill disturbs, but whether it does."""

    def decide(self, context: Context, decode: Candidate) -> Verdict:
        prefillers = context.prefillers
        weights, now, prompt = self.weights(), context.now, context.prompt
        what = ask(context.request, prompt, Leg.DECODE, decode.estimate)
        decoders = context.decoders or (decode,)
        here, here_cost = _least(decoders, [local(what, d, weights, now) for d in decoders])
        if not prefillers:
            return Verdict(False, "pd-no-prefiller", here)
        there, hand_over = _least(decoders, [handed(what, d, weights, now) for d in decoders])
        others = [p for p in prefillers if p.state.endpoint.id != there.state.endpoint.id]
        if not others:
            return Verdict(False, "pd-no-prefiller", here)
        leg = ask(context.request, prompt, Leg.PREFILL, decode.estimate)
        helper, ahead = _least(others, [local(leg, p, weights, now) for p in others])
        remote = ahead.total + hand_over.total
        if remote < here_cost.total:
            return Verdict(True, "pd", there, helper)
        gain = here_cost.total - remote
        if here.match.blocks * prompt.block_size * 2 >= prompt.token_count > 0:
            reason = "pd-cached"
        elif gain + ahead.pending + ahead.memory > 0:
            reason = "pd-prefill-busy"
        elif gain + hand_over.pending > 0:
            reason = "pd-transfer-dearer"
        else:
            reason = "pd-short"
        return Verdict(False, reason, here)


def _least(candidates: Sequence[Candidate], found: Sequence[Terms]) -> tuple[Candidate, Terms]:
    costs = [terms.total for terms in found]
    best = costs.index(min(costs))
    return candidates[best], found[best]
