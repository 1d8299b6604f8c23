"""Explanation: one decision with every candidate's terms, for people. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from router.core import Candidate, Comparison, Decision, InferenceRequest, Leg, Role, TokenizedPrompt
from router.scheduling.cost import Terms, Weights, ask, comparison, handed, local, predicted_s


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate. Seconds and tokens."""

    endpoint: str
    role: str
    chosen_for: str
    """``decode``, ``prefill`` or empty."""
    matched_tokens: int
    requests: int
    """In flight there."""
    prefill_confidence: float | None
    """0..1; None where no engine model is kept."""
    terms: Mapping[str, float]
    """Of the predicted cost with the default weights; of the prefill leg alone for an endpoint that only prefills."""
    predicted_ttft_s: float
    predicted_tpot_s: float
    scores: Mapping[str, float]
    """Plugin -> weighted score."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    decode: Sequence[str]
    """Endpoint ids, best first."""
    prefill: Sequence[str]
    predicted_ttft_s: float | None = None
    """Of the choice, from the decision on: with prefill and decode apart, both legs and the transfer. None where no
    engine model is kept."""
    compared: Comparison | None = None
    """Apart or on one endpoint, as the decider reckoned it; of a pair that was chosen without reckoning, with the
    default weights. None where all is done on one endpoint and nothing was reckoned."""
    weighed: bool = True
    """Whether the decider reckoned `compared`, and so chose by it."""
    slo_ttft_s: float | None = None
    """The request's own objective for the first token, where one counts; as is `slo_tpot_s` for those behind it."""
    slo_tpot_s: float | None = None
    prompt_tokens: int
    token_source: str
    blocks: int
    candidates: Sequence[Row]
    """Cheapest first."""


_TERMS = tuple(name for name in Terms.__struct_fields__ if name not in ("ttft", "tpot"))
_WEIGHTS = Weights()


def explain(
    request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision, candidates: Sequence[Candidate], now: float
) -> Explanation:
    """`decision` as the scheduler made it over `candidates`, with its scores."""
    rows = [
        (local(what, candidate, _WEIGHTS, now), candidate)
        for leg, those in _by_leg(candidates).items()
        for what in (ask(request, prompt, leg, those),)
        for candidate in those
    ]
    rows.sort(key=lambda row: row[0].total)
    asked = ask(request, prompt, Leg.DECODE, decision.decode)
    return Explanation(
        reason=decision.reason,
        decode=[candidate.id for candidate in decision.decode],
        prefill=[candidate.id for candidate in decision.prefill],
        predicted_ttft_s=_rounded(expected_ttft_s(prompt, decision, now)),
        compared=decision.compared or _compared(request, prompt, decision, now),
        weighed=decision.compared is not None,
        slo_ttft_s=asked.slo_ttft_s,
        slo_tpot_s=asked.slo_tpot_s,
        prompt_tokens=prompt.token_count,
        token_source=prompt.source.value,
        blocks=len(prompt.block_hashes),
        candidates=[_row(prompt, decision, terms, candidate) for terms, candidate in rows],
    )


def _compared(request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision, now: float) -> Comparison | None:
    """What a pair costs whose decider has not said."""
    if not decision.prefill:
        return None
    prefill, decode = decision.prefill[0], decision.decode[0]
    what = ask(request, prompt, Leg.DECODE, decision.decode)
    ahead = local(ask(request, prompt, Leg.PREFILL, decision.prefill), prefill, _WEIGHTS, now)
    rest, whole = handed(what, decode, _WEIGHTS, now), local(what, decode, _WEIGHTS, now)
    return comparison(prefill, ahead, decode, rest, decode, whole)


def _by_leg(candidates: Sequence[Candidate]) -> Mapping[Leg, Sequence[Candidate]]:
    """Those that are compared with each other: who only prefills is no alternative to who serves."""
    groups: dict[Leg, list[Candidate]] = {}
    for candidate in candidates:
        leg = Leg.PREFILL if candidate.endpoint.role is Role.PREFILL else Leg.DECODE
        groups.setdefault(leg, []).append(candidate)
    return groups


def _row(prompt: TokenizedPrompt, decision: Decision, terms: Terms, candidate: Candidate) -> Row:
    estimate = candidate.estimate
    return Row(
        endpoint=candidate.id,
        role=candidate.endpoint.role.value,
        chosen_for=_chosen_for(candidate.id, decision),
        matched_tokens=min(candidate.match.blocks * prompt.block_size, prompt.token_count),
        requests=candidate.inflight.requests,
        prefill_confidence=None if estimate is None else round(estimate.prefill_confidence, 3),
        terms={name: round(getattr(terms, name), 6) for name in _TERMS},
        predicted_ttft_s=round(terms.ttft, 6),
        predicted_tpot_s=round(terms.tpot, 6),
        scores={name: round(score, 6) for name, score in decision.scores.get(candidate.id, {}).items()},
    )


def _chosen_for(endpoint_id: str, decision: Decision) -> str:
    if decision.decode[0].id == endpoint_id:
        return "decode"
    return "prefill" if decision.prefill and decision.prefill[0].id == endpoint_id else ""


def expected_ttft_s(prompt: TokenizedPrompt, decision: Decision, now: float) -> float | None:
    """Seconds from a decision now to the first token, over both legs; None where no engine model is kept."""
    decode = decision.decode[0]
    if not decision.prefill:
        return predicted_s(prompt, decode, now)
    ahead = predicted_s(prompt, decision.prefill[0], now)
    handed = predicted_s(prompt, decode, now, prefills=False)
    return None if ahead is None or handed is None else ahead + handed


def short_form(prompt: TokenizedPrompt, decision: Decision, now: float) -> str:
    """One line for a response header: the choice, what was predicted of it, and the next best."""
    parts = [f"reason={decision.reason}"]
    apart = bool(decision.prefill)
    if apart and (whole := expected_ttft_s(prompt, decision, now)) is not None:
        parts.append(f"ttft={whole:.3f}")
    for leg, ranked, prefills in (("prefill", decision.prefill, True), ("decode", decision.decode, not apart)):
        names = (leg, f"next-{leg}")
        parts += [f"{name}={_told(prompt, c, now, prefills)}" for name, c in zip(names, ranked, strict=False)]
    return "; ".join(parts)


def _told(prompt: TokenizedPrompt, candidate: Candidate, now: float, prefills: bool) -> str:
    matched = min(candidate.match.blocks * prompt.block_size, prompt.token_count)
    told = f"{candidate.id} matched={matched}/{prompt.token_count} in-flight={candidate.inflight.requests}"
    predicted = predicted_s(prompt, candidate, now, prefills=prefills)
    return told if predicted is None else f"{told} ttft={predicted:.3f}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
