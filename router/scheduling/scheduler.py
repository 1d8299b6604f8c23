"""Scheduler: one request and its candidates -> `Decision`. PURE.

    decode profile -> decider on the chosen decode candidate -> prefill profile

Roles are the scheduler's own rule, not a filter's: a prefill endpoint never decodes, and the prefill leg goes to a
prefill or both endpoint other than the chosen decode endpoint. Reasons, a bounded set used as metric labels:

    aggregated        nobody to prefill elsewhere, or nothing to disaggregate
    pd                prefill and decode on two endpoints
    pd-no-prefiller   the decider wanted it, but no other endpoint can prefill
    pd-saturated      the decider wanted it, but the prefill profile's saturation filter kept nobody
    pd-filtered       the decider wanted it, but another filter of the prefill profile kept nobody
    ...               and the decider's own words, e.g. pd-short, pd-cached, pd-never
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from router.core import Api, Candidate, Comparison, Decision, InferenceRequest, Leg, Role, TokenizedPrompt
from router.errors import NoEndpoint, Overloaded, RouterError
from router.scheduling.plugins import Context, Decider
from router.scheduling.profile import DrainedError, Named, PluginFailed, Profile, ScoreTable

_RETRY_AFTER_S = 1

# An enum member costs a descriptor call each time it is looked up on its class, once for each candidate.
_PREFILL, _DECODE = Role.PREFILL, Role.DECODE
_NO_PREFILLER = "pd-no-prefiller"


class Scheduler:
    """Immutable once built; `decide` neither waits nor remembers."""

    __slots__ = ("_decider", "_decode", "_failed", "_prefill")

    def __init__(self, decode: Profile, prefill: Profile, decider: Named[Decider], failed: PluginFailed) -> None:
        self._decode = decode
        self._prefill = prefill
        self._decider = decider
        self._failed = failed

    def decide(
        self,
        request: InferenceRequest,
        prompt: TokenizedPrompt,
        candidates: Sequence[Candidate],
        *,
        now: float,
        rng: random.Random,
        explain: bool = False,
    ) -> Decision:
        """Who serves `request`.

        `candidates`: the endpoints that serve the model and may get new work (neither unhealthy nor draining), each
        with its own in-flight and match. `now` in monotonic seconds. `explain` fills `Decision.scores`.

        Raises `NoEndpoint` when nobody is eligible and `Overloaded` when everybody eligible is saturated.
        """
        decoders = [candidate for candidate in candidates if candidate.state.endpoint.role is not _PREFILL]
        if not decoders:
            raise _nobody_decodes(len(candidates))
        table: ScoreTable | None = {} if explain else None
        context = Context(request=request, prompt=prompt, leg=Leg.DECODE, now=now, rng=rng)
        try:
            ranked = self._decode.run(context, decoders, table)
        except DrainedError as drained:
            raise _refusal(drained) from None
        ranked, prefill, reason, compared = self._prefill_leg(context, candidates, len(decoders), ranked, table)
        return Decision(decode=tuple(ranked), prefill=prefill, reason=reason, compared=compared, scores=table or {})

    def _prefill_leg(
        self,
        context: Context,
        candidates: Sequence[Candidate],
        decoders: int,
        ranked: Sequence[Candidate],
        table: ScoreTable | None,
    ) -> tuple[Sequence[Candidate], tuple[Candidate, ...], str, Comparison | None]:
        """(decode leg, prefill leg, reason, what the decider compared)"""
        chosen = ranked[0]
        # In a pool where everybody serves whole requests nothing says that two of them share a KV connector.
        separate = len(candidates) > decoders or chosen.state.endpoint.role is Role.DECODE
        if not separate or context.request.api is Api.OTHER:
            return ranked, (), "aggregated", None
        helpers = _Helpers(self._prefill, context, candidates, table)
        asked = Context(
            request=context.request,
            prompt=context.prompt,
            leg=Leg.DECODE,
            now=context.now,
            rng=context.rng,
            decoders=ranked,
            rank_prefillers=helpers.rank,
        )
        try:
            verdict = self._decider.plugin.decide(asked, chosen)
        except Exception as error:  # noqa: BLE001 (a third-party plugin)
            self._failed(self._decider.name, Leg.PREFILL, error)
            return ranked, (), "aggregated", None
        if verdict.decode is not None:
            ranked, chosen = _first(verdict.decode, ranked), verdict.decode
        if not verdict.disaggregate:
            why = helpers.why if verdict.reason == _NO_PREFILLER else verdict.reason
            return ranked, (), why, verdict.compared
        found = helpers.rank(chosen)
        return ranked, tuple(found), verdict.reason if found else helpers.why, verdict.compared


class _Helpers:
    """Who may prefill, ranked when it is asked for: a decider that keeps the prompt where it is may never ask."""

    __slots__ = ("_candidates", "_context", "_for", "_profile", "_ranked", "_table", "why")

    def __init__(
        self, profile: Profile, context: Context, candidates: Sequence[Candidate], table: ScoreTable | None
    ) -> None:
        self._profile = profile
        self._context = context
        self._candidates = candidates
        self._table = table
        self._for: Candidate | None = None
        self._ranked: Sequence[Candidate] = ()
        self.why = _NO_PREFILLER
        """Why the last ranking was empty."""

    def rank(self, decode: Candidate) -> Sequence[Candidate]:
        if self._for is not decode:
            self._for = decode
            self._ranked = self._run(decode)
        return self._ranked

    def _run(self, decode: Candidate) -> Sequence[Candidate]:
        self.why = _NO_PREFILLER
        able = [
            candidate
            for candidate in self._candidates
            if candidate.state.endpoint.role is not _DECODE and candidate is not decode
        ]
        if not able:
            return ()
        asked = self._context
        leg = Context(
            request=asked.request, prompt=asked.prompt, leg=Leg.PREFILL, now=asked.now, rng=asked.rng, peer=decode
        )
        try:
            return self._profile.run(leg, able, self._table)
        except DrainedError as drained:
            self.why = "pd-saturated" if drained.saturated else "pd-filtered"
            return ()


def _first(chosen: Candidate, ranked: Sequence[Candidate]) -> Sequence[Candidate]:
    """`ranked` with `chosen` before the others; unchanged when a filter has dropped it."""
    if ranked[0] is chosen or not any(candidate is chosen for candidate in ranked):
        return ranked
    return [chosen, *(candidate for candidate in ranked if candidate is not chosen)]


def _nobody_decodes(count: int) -> RouterError:
    if not count:
        return NoEndpoint("No healthy endpoint serves this model.", retry_after_s=_RETRY_AFTER_S)
    who = "the only healthy endpoint only prefills" if count == 1 else f"all {count} healthy endpoints only prefill"
    return NoEndpoint(
        f"No healthy endpoint can decode for this model: {who}. Start or repair an endpoint of role decode or both.",
        retry_after_s=_RETRY_AFTER_S,
    )


def _refusal(drained: DrainedError) -> RouterError:
    if drained.saturated:
        return Overloaded(
            f"All {drained.of} eligible endpoints are saturated (filter {drained.filter_name!r}): try again later.",
            retry_after_s=_RETRY_AFTER_S,
        )
    return NoEndpoint(
        f"None of the {drained.of} endpoints that serve this model passes the filter {drained.filter_name!r}.",
        retry_after_s=_RETRY_AFTER_S,
    )
