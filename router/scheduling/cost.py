"""What a request would cost on each candidate, term by term, in seconds. PURE.

    pending       prefill that was dispatched there and is not done
  + own           this prompt's own prefill
  - reuse         of that, what is charged to others who will use it there
  + steps         decode steps that run along until its first token
  + delay         how much longer those who come later will wait for it
  + interference  what its prefill puts on the answers under way
  + answer        how long the answer will take at the pace of the batch it joins, and how much longer it makes theirs
  + memory        waiting for KV space
  + eviction      prefill thrown away: what will be asked for in vain because this takes its place
  + slo           by how much the request's own objectives would be missed

docs/scheduling.md tells where each weight comes from. Times of one prefill and one step are `EngineEstimate`'s laws.
`costs` is the sum alone for many candidates, which every decision waits for; `local` is the same with its terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

import msgspec

from router.core import Candidate, Comparison, EngineEstimate, InferenceRequest, Inflight, Leg, TokenizedPrompt


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    own: float = 1.0
    reuse: float = 1.0
    delay: float = 1.0
    interference: float = 0.02
    answer: float = 0.3
    memory: float = 1.0
    eviction: float = 1.0
    slo: float = 4.0


class Terms(msgspec.Struct, frozen=True, gc=False):
    """One candidate's, weighted, in seconds; `ttft` and `tpot` are plain predictions and no part of the sum."""

    total: float
    pending: float
    own: float
    reuse: float
    steps: float
    delay: float
    interference: float
    answer: float
    memory: float
    eviction: float
    slo: float
    ttft: float
    tpot: float


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of an engine."""

    tokens: int
    """Of the prompt."""
    block_size: int
    output: float
    """Expected of the answer, in tokens."""
    delayed_per_s: float = 0.0
    """`EngineEstimate.delayed_per_s`, the mean over the candidates: an engine that gets few prompts just because its
    own are long must not be taken for one on which long prompts delay nobody."""
    queued_s: float = 0.0
    """Prefill that waits on a candidate, the mean."""
    shared_tokens: int = 0
    """Of the prompt, what the candidate that has most of it has."""
    reused: float = 0.0
    """Share of that, were it computed elsewhere, which others would use: n / (n + 1) with n in flight that have it."""
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


_TTFT = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_EXPECTED = 256.0


def ask(request: InferenceRequest, prompt: TokenizedPrompt, leg: Leg, candidates: Sequence[Candidate]) -> Ask:
    """`candidates`: all that the cost will be compared on, at least one. Objectives count when their headers are
    trusted, since the front hides all others."""
    like = candidates[0].estimate
    expected = _EXPECTED if like is None else like.output_tokens
    most = request.max_tokens
    headers = request.routing_headers
    known = [candidate.estimate for candidate in candidates if candidate.estimate is not None]
    count = len(known) or 1
    shared, reused = _shared(prompt, candidates)
    return Ask(
        tokens=prompt.token_count,
        block_size=prompt.block_size,
        output=1.0 if leg is Leg.PREFILL else expected if most is None or most > expected else float(most),
        delayed_per_s=sum([each.delayed_per_s for each in known]) / count,
        queued_s=sum([each.queued_s for each in known]) / count,
        shared_tokens=shared,
        reused=reused,
        slo_ttft_s=_objective(headers, _TTFT) if headers else None,
        slo_tpot_s=_objective(headers, _TPOT) if headers and leg is Leg.DECODE else None,
    )


def _shared(prompt: TokenizedPrompt, candidates: Sequence[Candidate]) -> tuple[int, float]:
    """(tokens of the prompt that somebody has, what of them requests in flight there would use)"""
    matches = [candidate.match.blocks for candidate in candidates]
    most = max(matches)
    if not most:
        return 0, 0.0
    estimate = candidates[matches.index(most)].estimate
    if estimate is None:
        return 0, 0.0
    followed = most - most % estimate.users_stride
    if not 0 < followed <= len(prompt.block_hashes):
        return 0, 0.0
    users = estimate.users.get(prompt.block_hashes[followed - 1], 0)
    return followed * prompt.block_size, users / (users + 1)


def _objective(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    """Milliseconds in the first of the headers, as seconds; None for what is no positive number."""
    for name in names:
        text = headers.get(name)
        if text is not None:
            try:
                value = float(text) / 1000.0
            except ValueError:
                return None
            return value if 0.0 < value < float("inf") else None
    return None


def costs(what: Ask, candidates: Sequence[Candidate], weights: Weights, now: float) -> list[float]:
    """`local(...).total` of each candidate, written for speed: a decision waits for all of them. A test holds the two
    together."""
    count, size, output = what.tokens, what.block_size, what.output
    whole = count - 1 if count else 0
    w_own, w_interference, w_memory = weights.own, weights.interference, weights.memory
    w_answer, delay = weights.answer * output, weights.delay * what.delayed_per_s
    own_again, delay_again = weights.eviction * w_own, weights.eviction * delay * what.queued_s
    objectives = what.slo_ttft_s is not None or what.slo_tpot_s is not None
    shared, reused = what.shared_tokens, weights.reuse * what.reused
    found: list[float] = []
    for candidate in candidates:
        estimate = candidate.estimate
        if estimate is None or objectives or candidate.others.requests:
            found.append(local(what, candidate, weights, now).total)
            continue
        cached = candidate.match.blocks * size
        if cached >= count:
            cached = whole
        new = count - cached
        token_s, step_s, decoding = estimate.token_s, estimate.step_s, estimate.decoding
        own = estimate.overhead_s + new * (token_s + estimate.pair_s * (cached + 0.5 * new))
        slower = estimate.step_seq_s + estimate.step_kv_s * count
        share = 1.0
        if cached < shared:
            share -= reused * (shared - cached) / new
            own *= share
        pending = estimate.queued_s
        if pending:
            done = now - estimate.head_at
            most = 0.95 * estimate.head_s
            pending -= most if done > most else done
        total = pending + own * (w_own + w_interference * decoding + delay * (pending + 0.5 * own))
        if step_s:
            room = estimate.chunk - decoding
            total += (0.5 + ceil((estimate.queued_tokens + new) / (room if room > 0 else 1))) * step_s
            total += w_answer * (step_s + slower + decoding * slower)
        else:
            total += w_answer * (estimate.step_base_s + slower + decoding * slower)
        capacity = estimate.capacity_tokens
        if capacity:
            needed = new + output
            evicted = needed - estimate.free_tokens
            if evicted > 0:
                lost = evicted * (token_s + 0.5 * count * estimate.pair_s)
                missed = estimate.missed_per_token
                total += share * lost * missed * (own_again + delay_again * missed / (1.0 + missed))
            wanted = estimate.held_tokens + needed
            if wanted > capacity:
                total += w_memory * (wanted - capacity) / wanted * estimate.output_tokens * step_s
        found.append(total)
    return found


def local(what: Ask, candidate: Candidate, weights: Weights, now: float) -> Terms:
    """The whole request on the candidate, or its prefill leg."""
    estimate = candidate.estimate or assumed(candidate.inflight)
    count = what.tokens
    cached = candidate.match.blocks * what.block_size
    if cached >= count:
        cached = count - 1 if count else 0
    new = count - cached
    own = estimate.overhead_s + new * (estimate.token_s + estimate.pair_s * (cached + 0.5 * new))
    pending, queued, decoding, step_s = estimate.queued_s, estimate.queued_tokens, estimate.decoding, estimate.step_s
    if pending:
        done = now - estimate.head_at
        most = 0.95 * estimate.head_s
        pending -= most if done > most else done
    others = candidate.others
    if others.requests:
        # The model does not see these one by one.
        pending += others.prefill_tokens * estimate.token_s
        queued += others.prefill_tokens
        decoding += others.requests
        step_s = (step_s or estimate.step_base_s) + others.requests * estimate.step_seq_s
    # Half a step more: it comes in the middle of one.
    steps = (0.5 + ceil((queued + new) / (estimate.chunk - decoding if decoding < estimate.chunk else 1))) * step_s
    memory, eviction = _space(what, candidate, estimate, new, step_s, weights)
    slower = estimate.step_seq_s + estimate.step_kv_s * count
    tpot = (step_s or estimate.step_base_s) + slower
    ttft = pending + own + steps + memory
    slo = _missed(what, ttft, tpot) if what.slo_ttft_s is not None or what.slo_tpot_s is not None else 0.0
    # The work that is charged to this request; the rest is for those who will find it done.
    charged = own
    if cached < what.shared_tokens:
        share = 1.0 - weights.reuse * what.reused * (what.shared_tokens - cached) / new
        charged *= share
        eviction *= share
    weighted = weights.own * own
    reuse = weights.own * (charged - own)
    delay = weights.delay * what.delayed_per_s * charged * (pending + 0.5 * charged)
    interference = weights.interference * charged * decoding
    answer = weights.answer * what.output * (tpot + decoding * slower)
    memory *= weights.memory
    slo *= weights.slo
    total = pending + weighted + reuse + steps + delay + interference + answer + memory + eviction + slo
    return Terms(total, pending, weighted, reuse, steps, delay, interference, answer, memory, eviction, slo, ttft, tpot)


def handed(what: Ask, candidate: Candidate, weights: Weights, now: float) -> Terms:
    """The decode leg alone, its prompt's KV handed over; the transfer is in `pending`."""
    estimate = candidate.estimate or assumed(candidate.inflight)
    count = what.tokens
    moved = max(count - candidate.match.blocks * what.block_size, 1)
    transfer = estimate.transfer_base_s + moved * estimate.transfer_token_s
    others = candidate.others.requests
    step_s = (estimate.step_s or estimate.step_base_s) + others * estimate.step_seq_s
    memory, eviction = _space(what, candidate, estimate, moved, step_s, weights)
    slower = estimate.step_seq_s + estimate.step_kv_s * count
    tpot = step_s + slower
    ttft = transfer + 1.5 * step_s + memory
    slo = weights.slo * _missed(what, ttft, tpot)
    answer = weights.answer * what.output * (tpot + (estimate.decoding + others) * slower)
    memory *= weights.memory
    total = transfer + 1.5 * step_s + answer + memory + eviction + slo
    return Terms(total, transfer, 0.0, 0.0, 1.5 * step_s, 0.0, 0.0, answer, memory, eviction, slo, ttft, tpot)


def cheapest_handed(what: Ask, candidates: Sequence[Candidate], weights: Weights, now: float) -> int:
    """Index of the candidate whose `handed(...).total` is least."""
    count, size, output = what.tokens, what.block_size, what.output
    w_memory = weights.memory
    w_answer = weights.answer * output
    objectives = what.slo_ttft_s is not None or what.slo_tpot_s is not None
    least, best = inf, 0
    for index, candidate in enumerate(candidates):
        estimate = candidate.estimate
        if estimate is None or objectives or candidate.others.requests:
            total = handed(what, candidate, weights, now).total
        else:
            moved = count - candidate.match.blocks * size
            if moved < 1:
                moved = 1
            step_s = estimate.step_s or estimate.step_base_s
            slower = estimate.step_seq_s + estimate.step_kv_s * count
            total = estimate.transfer_base_s + moved * estimate.transfer_token_s + 1.5 * step_s
            total += w_answer * (step_s + slower + estimate.decoding * slower)
            capacity = estimate.capacity_tokens
            if capacity:
                needed = moved + output
                evicted = needed - estimate.free_tokens
                if evicted > 0:
                    lost = evicted * (estimate.token_s + 0.5 * count * estimate.pair_s)
                    total += lost * _again(what, estimate.missed_per_token, weights)
                wanted = estimate.held_tokens + needed
                if wanted > capacity:
                    total += w_memory * (wanted - capacity) / wanted * estimate.output_tokens * step_s
        if total < least:
            least, best = total, index
    return best


def comparison(
    prefill: Candidate, ahead: Terms, decode: Candidate, rest: Terms, alone: Candidate, whole: Terms
) -> Comparison:
    """`ahead` and `rest`: the two legs apart; `whole`: all on `alone`."""
    return Comparison(
        prefill=prefill.id,
        decode=decode.id,
        prefill_cost=ahead.total,
        decode_cost=rest.total,
        apart_ttft_s=ahead.ttft + rest.ttft,
        whole=alone.id,
        whole_cost=whole.total,
        whole_ttft_s=whole.ttft,
    )


def _again(what: Ask, missed: float, weights: Weights) -> float:
    """Price of a second of prefill, `missed` of which will be computed again, somewhere: as own work, and as a delay to
    the queue, as far as that comes of what is missed; the rest of it will be over by then."""
    delay = weights.delay * what.delayed_per_s * what.queued_s * missed / (1.0 + missed)
    return weights.eviction * missed * (weights.own + delay)


def _space(
    what: Ask, candidate: Candidate, estimate: EngineEstimate, new: int, step_s: float, weights: Weights
) -> tuple[float, float]:
    """(seconds until there is KV space, seconds of prefill that are evicted for it)."""
    capacity = estimate.capacity_tokens
    if not capacity:
        return 0.0, 0.0
    needed = new + what.output
    others = candidate.others.tokens
    held = estimate.held_tokens + others
    memory = eviction = 0.0
    if held + needed > capacity:
        memory = (held + needed - capacity) / (held + needed) * estimate.output_tokens * step_s
    evicted = needed - max(estimate.free_tokens - others, 0)
    if evicted > 0:
        lost = evicted * (estimate.token_s + 0.5 * what.tokens * estimate.pair_s)
        eviction = lost * _again(what, estimate.missed_per_token, weights)
    return memory, eviction


def _missed(what: Ask, ttft: float, tpot: float) -> float:
    """Seconds late, of the first token and over the whole answer."""
    late = 0.0
    if what.slo_ttft_s is not None and ttft > what.slo_ttft_s:
        late = ttft - what.slo_ttft_s
    if what.slo_tpot_s is not None and tpot > what.slo_tpot_s:
        late += what.output * (tpot - what.slo_tpot_s)
    return late


def predicted_s(
    prompt: TokenizedPrompt | None, candidate: Candidate, now: float, *, prefills: bool = True
) -> float | None:
    """Seconds from a dispatch now to the first token; None where no engine model is kept."""
    if candidate.estimate is None or prompt is None:
        return None
    what = Ask(tokens=prompt.token_count, block_size=prompt.block_size, output=1.0)
    return (local if prefills else handed)(what, candidate, _PLAIN, now).ttft


_PLAIN = Weights()


def assumed(inflight: Inflight) -> EngineEstimate:
    """Where no engine model is kept: a slow engine that feels each request, and our in-flight counts.

    Three times what an answer more costs a large engine: who does not know must not let one endpoint fill up.
    """
    step_s = 0.012 + 1.5e-4 * inflight.requests + 3e-8 * inflight.tokens if inflight.requests else 0.0
    return EngineEstimate(
        overhead_s=0.005,
        token_s=1 / 5000,
        pair_s=1.5e-9,
        step_base_s=0.012,
        step_seq_s=1.5e-4,
        step_kv_s=3e-8,
        transfer_base_s=0.005,
        transfer_token_s=1e-5,
        chunk=8192,
        queued_s=inflight.prefill_tokens / 5000,
        queued_tokens=inflight.prefill_tokens,
        requests=inflight.requests,
        decoding=inflight.requests,
        step_s=step_s,
    )
