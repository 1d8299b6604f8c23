"""What a request would cost on each candidate, term by term, in seconds. PURE.

    pending       prefill that is dispatched there and not done
  + own           this prompt's own prefill, weighted
  + steps         decode steps that run along until then
  + interference  what this prefill puts on the answers under way
  + answer        what the answer under way would take longer here than on an idle engine
  + memory        waiting for KV space
  + eviction      prefill that is thrown away: evicted tokens, the less the longer they have not been used
  + waste         prefill that another candidate would not have to do, dearer the longer the queues are

docs/scheduling.md tells where each weight comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from router.core import Candidate, EngineEstimate, Inflight, TokenizedPrompt


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    own: float = 2.0
    interference: float = 0.05
    answer: float = 0.0
    memory: float = 1.0
    eviction: float = 1.0
    eviction_horizon_s: float = 120.0
    waste: float = 0.0
    waste_backlog: float = 0.0
    """Added to `waste` for each prompt's worth of prefill that a candidate has queued in the mean."""


class Terms(msgspec.Struct, frozen=True):
    """One candidate's, weighted, in seconds."""

    pending: float
    own: float
    steps: float
    interference: float
    answer: float
    memory: float
    eviction: float
    waste: float
    ttft: float
    """Predicted, not weighted."""

    @property
    def total(self) -> float:
        return (
            self.pending
            + self.own
            + self.steps
            + self.interference
            + self.answer
            + self.memory
            + self.eviction
            + self.waste
        )


def terms(
    prompt: TokenizedPrompt, candidates: Sequence[Candidate], weights: Weights, now: float, output: float
) -> list[Terms]:
    """`output`: tokens of the answer that this request will get; 1 for a prefill leg."""
    count, size = prompt.token_count, prompt.block_size
    found: list[Terms] = []
    owns: list[float] = []
    backlog = 0.0
    for candidate in candidates:
        estimate = candidate.estimate or assumed(candidate.inflight)
        cached = candidate.match.blocks * size
        if cached >= count:
            cached = max(count - 1, 0)
        new = count - cached
        own = estimate.overhead_s + new * (estimate.token_s + estimate.pair_s * (cached + 0.5 * new))
        pending = estimate.queued_s
        if pending:
            done = now - estimate.head_at
            most = 0.95 * estimate.head_s
            pending -= most if done > most else done
        step_s = estimate.step_s
        decoding = estimate.decoding
        steps = math.ceil((estimate.queued_tokens + new) / (estimate.chunk - decoding)) * step_s if step_s else 0.0
        memory = eviction = 0.0
        capacity = estimate.capacity_tokens
        if capacity:
            needed = new + output
            over = estimate.held_tokens + needed - capacity
            if over > 0:
                memory = over / max(estimate.held_tokens, 1) * estimate.output_tokens * step_s
            evicted = needed - estimate.free_tokens
            if evicted > 0:
                age = now - estimate.coldest_at
                eviction = evicted * estimate.token_s * math.exp(-age / weights.eviction_horizon_s)
        answer = output * (step_s + estimate.step_seq_s + estimate.step_kv_s * count) if weights.answer else 0.0
        owns.append(own)
        backlog += pending
        found.append(
            Terms(
                pending,
                weights.own * own,
                steps,
                weights.interference * own * decoding,
                weights.answer * answer,
                weights.memory * memory,
                weights.eviction * eviction,
                0.0,
                pending + own + steps + memory,
            )
        )
    if weights.waste or weights.waste_backlog:
        least = min(owns)
        queued = backlog / len(owns) / max(sum(owns) / len(owns), 1e-6)
        price = weights.waste + weights.waste_backlog * queued
        found = [msgspec.structs.replace(t, waste=price * (own - least)) for t, own in zip(found, owns, strict=True)]
    return found


def predicted_s(
    prompt: TokenizedPrompt | None, candidate: Candidate, now: float, *, prefills: bool = True
) -> float | None:
    """Seconds from a dispatch now to the first token; None where no engine model is kept."""
    estimate = candidate.estimate
    if estimate is None or prompt is None:
        return None
    if prefills:
        return terms(prompt, (candidate,), _PLAIN, now, 1.0)[0].ttft
    moved = max(prompt.token_count - candidate.match.blocks * prompt.block_size, 1)
    return (
        estimate.transfer_base_s + moved * estimate.transfer_token_s + 1.5 * (estimate.step_s or estimate.step_base_s)
    )


_PLAIN = Weights(eviction=0.0)


def assumed(inflight: Inflight) -> EngineEstimate:
    return EngineEstimate(
        overhead_s=0.005,
        token_s=1 / 5000,
        pair_s=1.5e-9,
        step_base_s=0.012,
        step_seq_s=5e-5,
        step_kv_s=3e-8,
        transfer_base_s=0.005,
        transfer_token_s=1e-5,
        chunk=8192,
        queued_s=inflight.prefill_tokens / 5000,
        queued_tokens=inflight.prefill_tokens,
        decoding=inflight.requests,
        step_s=0.012 + 5e-5 * inflight.requests + 3e-8 * inflight.tokens if inflight.requests else 0.0,
    )
