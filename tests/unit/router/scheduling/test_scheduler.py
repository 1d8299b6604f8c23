import random
from collections.abc import Sequence
from typing import Any

import pytest

from router.core import Api, Candidate, Decision, Leg, Role
from router.errors import NoEndpoint, Overloaded
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.plugins import Context, Verdict
from router.scheduling.profile import Named, Profile
from router.scheduling.scheduler import Scheduler
from tests.support.scheduling import NOW, candidate, ids, prompt, request

ALWAYS = {"decider": "always-disagg-pd-decider"}


def decide(
    candidates: Sequence[Candidate],
    settings: dict[str, Any] | None = None,
    *,
    blocks: int = 0,
    api: Api = Api.CHAT,
    explain: bool = False,
) -> Decision:
    scheduler = build_scheduler(SchedulingSettings.model_validate(settings or {}), builtin_registry())
    return scheduler.decide(
        request(api=api), prompt(blocks), candidates, now=NOW, rng=random.Random(0), explain=explain
    )


def prefiller(name: str, *, inflight: int = 0) -> Candidate:
    return candidate(name, role=Role.PREFILL, inflight=inflight)


def decoder(name: str, *, inflight: int = 0, matched: int = 0) -> Candidate:
    return candidate(name, role=Role.DECODE, inflight=inflight, matched=matched)


def test_a_pool_of_whole_engines_is_never_disaggregated() -> None:
    decision = decide([candidate("a"), candidate("b")], ALWAYS, blocks=100)
    assert (decision.prefill, decision.reason) == ((), "aggregated")
    assert sorted(ids(decision.decode)) == ["a", "b"]


def test_prefill_and_decode_go_to_two_endpoints_with_fallbacks_on_both_legs() -> None:
    pool = [prefiller("p1", inflight=5), prefiller("p2"), decoder("d1", inflight=5), decoder("d2")]
    decision = decide(pool, ALWAYS, blocks=100)
    assert ids(decision.decode) == ["d2", "d1"]
    assert ids(decision.prefill) == ["p2", "p1"]
    assert decision.reason == "pd"


def test_a_prefill_endpoint_never_decodes_and_the_decode_endpoint_never_prefills_for_itself() -> None:
    decision = decide([prefiller("p", inflight=99), candidate("b1"), candidate("b2", inflight=3)], ALWAYS, blocks=100)
    assert ids(decision.decode) == ["b1", "b2"]
    assert sorted(ids(decision.prefill)) == ["b2", "p"]


@pytest.mark.parametrize(
    ("blocks", "matched", "busy", "reason"),
    [(2, 0, 0, "pd-short"), (300, 0, 20, "pd"), (300, 290, 20, "pd-cached")],
)
def test_the_default_decider_weighs_what_the_decode_endpoint_lacks(
    blocks: int, matched: int, busy: int, reason: str
) -> None:
    decision = decide([prefiller("p"), decoder("d", matched=matched, inflight=busy)], blocks=blocks)
    assert decision.reason == reason
    assert ids(decision.prefill) == (["p"] if reason == "pd" else [])


def test_without_a_prefill_endpoint_the_decode_endpoint_does_it_all() -> None:
    decision = decide([decoder("d1"), decoder("d2")], ALWAYS, blocks=100)
    assert (decision.prefill, decision.reason) == ((), "pd-no-prefiller")


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ({"name": "f", "type": "active-request-filter", "parameters": {"maxRequests": 1}}, "pd-saturated"),
        ({"name": "f", "type": "label-selector-filter", "parameters": {"matchLabels": {"a": "b"}}}, "pd-filtered"),
    ],
)
def test_a_prefill_profile_that_leaves_nobody_falls_back_to_the_decode_endpoint(
    plugin: dict[str, Any], reason: str
) -> None:
    settings = {**ALWAYS, "plugins": [plugin], "profiles": {"prefill": {"filters": ["f"]}}}
    decision = decide([prefiller("p", inflight=2), decoder("d")], settings, blocks=100)
    assert (ids(decision.decode), decision.prefill, decision.reason) == (["d"], (), reason)


def test_requests_that_do_not_generate_are_not_disaggregated() -> None:
    decision = decide([prefiller("p"), decoder("d")], ALWAYS, api=Api.OTHER)
    assert (ids(decision.decode), decision.prefill, decision.reason) == (["d"], (), "aggregated")


def test_nobody_at_all_is_a_503() -> None:
    with pytest.raises(NoEndpoint, match="No healthy endpoint serves this model") as refused:
        decide([])
    assert refused.value.retry_after_s == 1


def test_only_prefill_endpoints_is_a_503_that_says_so() -> None:
    with pytest.raises(NoEndpoint, match="all 2 healthy endpoints only prefill"):
        decide([prefiller("p1"), prefiller("p2")])
    with pytest.raises(NoEndpoint, match="the only healthy endpoint only prefills"):
        decide([prefiller("p1")])


def test_saturation_is_a_429_and_ineligibility_a_503() -> None:
    saturated = {
        "plugins": [{"name": "cap", "type": "active-request-filter", "parameters": {"maxRequests": 1}}],
        "profiles": {"decode": {"filters": ["cap"]}},
    }
    with pytest.raises(Overloaded, match="All 2 eligible endpoints are saturated") as refused:
        decide([candidate("a", inflight=2), candidate("b", inflight=2)], {**saturated, **ALWAYS})
    assert refused.value.retry_after_s == 1
    labelled = {
        "plugins": [{"name": "gpu", "type": "by-label", "parameters": {"label": "gpu", "validValues": ["h100"]}}],
        "profiles": {"decode": {"filters": ["gpu"]}},
    }
    with pytest.raises(NoEndpoint, match=r"None of the 2 endpoints .* passes the filter 'gpu'"):
        decide([candidate("a"), candidate("b")], {**labelled, **ALWAYS})


def test_scores_are_explained_for_both_legs_only_when_asked() -> None:
    pool = [prefiller("p"), decoder("d", matched=50)]
    assert decide(pool, ALWAYS, blocks=100).scores == {}
    profile = {"scorers": [{"plugin": "prefix-cache-scorer", "weight": 3}]}
    settings = {**ALWAYS, "profiles": {"decode": profile, "prefill": profile}}
    scores = decide(pool, settings, blocks=100, explain=True).scores
    assert scores["d"]["prefix-cache-scorer"] == 1.5
    assert scores["p"]["prefill/prefix-cache-scorer"] == 0.0


class Broken:
    def decide(self, _context: Context, _decode: Candidate) -> Verdict:
        raise RuntimeError


class First:
    def pick(self, _context: Context, candidates: Sequence[Candidate], _scores: Sequence[float]) -> Sequence[Candidate]:
        return candidates


def test_a_decider_that_raises_is_reported_and_nothing_is_disaggregated() -> None:
    seen: list[tuple[str, Leg]] = []

    def failed(plugin: str, leg: Leg, _error: Exception) -> None:
        seen.append((plugin, leg))

    decode, prefill = (Profile(leg, [], [], Named("first", First()), failed) for leg in (Leg.DECODE, Leg.PREFILL))
    scheduler = Scheduler(decode, prefill, Named("broken", Broken()), failed)
    decision = scheduler.decide(request(), prompt(9), [prefiller("p"), decoder("d")], now=NOW, rng=random.Random(0))
    assert (ids(decision.decode), decision.prefill, decision.reason) == (["d"], (), "aggregated")
    assert seen == [("broken", Leg.PREFILL)]


def test_the_prefill_leg_knows_the_decode_endpoint_and_its_own_leg() -> None:
    seen: list[tuple[Leg, str | None]] = []

    class Spy(First):
        def pick(
            self, context: Context, candidates: Sequence[Candidate], _scores: Sequence[float]
        ) -> Sequence[Candidate]:
            seen.append((context.leg, None if context.peer is None else context.peer.id))
            return candidates

    class Always:
        def decide(self, _context: Context, _decode: Candidate) -> Verdict:
            return Verdict(True, "pd-because")

    decode, prefill = (Profile(leg, [], [], Named("spy", Spy()), lambda *_: None) for leg in (Leg.DECODE, Leg.PREFILL))
    scheduler = Scheduler(decode, prefill, Named("always", Always()), lambda *_: None)
    decision = scheduler.decide(request(), prompt(9), [prefiller("p"), decoder("d")], now=NOW, rng=random.Random(0))
    assert decision.reason == "pd-because"
    assert seen == [(Leg.DECODE, None), (Leg.PREFILL, "d")]
