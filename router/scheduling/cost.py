"""What a request would cost on each candidate, term by term, in seconds. PURE.

    pending       prefill that was dispatched there and is not done
  + own           this prompt's own prefill, weighted
  + steps         decode steps that run along until its first token
  + interference  what its prefill puts on the answers under way
  + answer        how long the answer will take at the pace of the batch it joins, and how much longer it makes theirs
  + memory        waiting for KV space
  + eviction      prefill thrown away: what must be evicted, the less the longer it was not used
  + slo           by how much the request's own objectives would be missed

docs/scheduling.md tells where each weight comes from. Times of one prefill and one step are `EngineEstimate`'s laws.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp

import msgspec

from router.core import Candidate, EngineEstimate, InferenceRequest, Inflight, Leg, TokenizedPrompt


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    own: float = 1.5
    interference: float = 0.1
    answer: float = 0.5
    memory: float = 1.0
    eviction: float = 0.5
    horizon_s: float = 120.0
    """Unused for that long, a cached block is worth 1/e of the prefill it would save."""
    slo: float = 4.0


class Terms(msgspec.Struct, frozen=True, gc=False):
    """One candidate's, weighted, in seconds; `ttft` and `tpot` are plain predictions and no part of the sum."""

    total: float
    pending: float
    own: float
    steps: float
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
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


_TTFT = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_EXPECTED = 256.0


def ask(request: InferenceRequest, prompt: TokenizedPrompt, leg: Leg, like: EngineEstimate | None) -> Ask:
    """`like`: an estimate that tells how long answers are. Objectives count when their headers are trusted, since the
    front hides all others."""
    expected = _EXPECTED if like is None else like.output_tokens
    most = request.max_tokens
    headers = request.routing_headers
    return Ask(
        tokens=prompt.token_count,
        block_size=prompt.block_size,
        output=1.0 if leg is Leg.PREFILL else expected if most is None or most > expected else float(most),
        slo_ttft_s=_objective(headers, _TTFT) if headers else None,
        slo_tpot_s=_objective(headers, _TPOT) if headers and leg is Leg.DECODE else None,
    )


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
    others = candidate.inflight.requests - estimate.requests
    if others > 0:
        # Other routers' requests, which the model does not see one by one.
        ahead = candidate.inflight.prefill_tokens - queued
        if ahead > 0:
            pending += ahead * estimate.token_s
            queued += ahead
        decoding += others
        step_s = (step_s or estimate.step_base_s) + others * estimate.step_seq_s
    steps = ceil((queued + new) / (estimate.chunk - decoding if decoding < estimate.chunk else 1)) * step_s
    memory, eviction = _space(what, estimate, new, step_s, now, weights.horizon_s)
    slower = estimate.step_seq_s + estimate.step_kv_s * count
    tpot = (step_s or estimate.step_base_s) + slower
    ttft = pending + own + steps + memory
    slo = _missed(what, ttft, tpot) if what.slo_ttft_s is not None or what.slo_tpot_s is not None else 0.0
    weighted = weights.own * own
    interference = weights.interference * own * decoding
    answer = weights.answer * what.output * (tpot + decoding * slower)
    memory *= weights.memory
    eviction *= weights.eviction
    slo *= weights.slo
    total = pending + weighted + steps + interference + answer + memory + eviction + slo
    return Terms(total, pending, weighted, steps, interference, answer, memory, eviction, slo, ttft, tpot)


def handed(what: Ask, candidate: Candidate, weights: Weights, now: float) -> Terms:
    """The decode leg alone, its prompt's KV handed over; the transfer is in `pending`."""
    estimate = candidate.estimate or assumed(candidate.inflight)
    count = what.tokens
    moved = max(count - candidate.match.blocks * what.block_size, 1)
    transfer = estimate.transfer_base_s + moved * estimate.transfer_token_s
    others = max(candidate.inflight.requests - estimate.requests, 0)
    step_s = (estimate.step_s or estimate.step_base_s) + others * estimate.step_seq_s
    memory, eviction = _space(what, estimate, moved, step_s, now, weights.horizon_s)
    slower = estimate.step_seq_s + estimate.step_kv_s * count
    tpot = step_s + slower
    ttft = transfer + 1.5 * step_s + memory
    slo = weights.slo * _missed(what, ttft, tpot)
    answer = weights.answer * what.output * (tpot + (estimate.decoding + others) * slower)
    memory *= weights.memory
    eviction *= weights.eviction
    total = transfer + 1.5 * step_s + answer + memory + eviction + slo
    return Terms(total, transfer, 0.0, 1.5 * step_s, 0.0, answer, memory, eviction, slo, ttft, tpot)


def _space(
    what: Ask, estimate: EngineEstimate, new: int, step_s: float, now: float, horizon_s: float
) -> tuple[float, float]:
    """(seconds until there is KV space, seconds of prefill that are evicted for it)."""
    capacity = estimate.capacity_tokens
    if not capacity:
        return 0.0, 0.0
    needed = new + what.output
    held = estimate.held_tokens
    memory = eviction = 0.0
    if held + needed > capacity:
        memory = (held + needed - capacity) / (held + needed) * estimate.output_tokens * step_s
    evicted = needed - estimate.free_tokens
    if evicted > 0:
        eviction = evicted * estimate.token_s * exp((estimate.coldest_at - now) / horizon_s)
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
