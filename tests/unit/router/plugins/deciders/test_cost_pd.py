"""Disaggregation when it is cheaper, on the pair for which it is, with the reason told."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from router.core import Candidate, Decision, Role
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from tests.support.scheduling import NOW, candidate, prompt, request
from tests.unit.router.plugins.scorers.test_predicted_latency import FAST

BUSY: dict[str, Any] = {"decoding": 60, "requests": 60, "step_s": 0.02}


def engine(id_: str, role: Role, *, matched: int = 0, **changed: Any) -> Candidate:
    estimate = msgspec.structs.replace(FAST, **changed)
    known = candidate(id_, role=role, matched=matched, inflight=estimate.requests)
    return Candidate(known.state, known.inflight, known.match, None, estimate)


def decide(*pool: Candidate, blocks: int = 512) -> Decision:
    settings = SchedulingSettings.model_validate({"decider": "cost-pd-decider"})
    return build_scheduler(settings, builtin_registry()).decide(
        request(), prompt(blocks), pool, now=NOW, rng=random.Random(0)
    )


def test_a_long_prompt_is_prefilled_elsewhere_when_answers_are_under_way() -> None:
    decision = decide(engine("p", Role.PREFILL), engine("d", Role.DECODE, **BUSY))
    assert (decision.reason, decision.prefill[0].id, decision.decode[0].id) == ("pd", "p", "d")


def test_the_pair_is_chosen_together() -> None:
    decision = decide(
        engine("p1", Role.PREFILL, queued_s=2.0, queued_tokens=18_000, requests=2),
        engine("p2", Role.PREFILL),
        engine("d1", Role.DECODE, **BUSY, transfer_token_s=2e-4),
        engine("d2", Role.DECODE, **BUSY),
    )
    assert (decision.prefill[0].id, decision.decode[0].id) == ("p2", "d2")
    assert len(decision.prefill) == len(decision.decode) == 2


@pytest.mark.parametrize(
    ("prefiller", "decoder", "blocks", "reason"),
    [
        ({}, {}, 2, "pd-short"),
        ({}, {"matched": 500}, 512, "pd-cached"),
        ({"queued_s": 30.0, "queued_tokens": 270_000}, BUSY, 512, "pd-prefill-busy"),
        ({}, BUSY | {"transfer_token_s": 1e-2}, 512, "pd-transfer-dearer"),
    ],
)
def test_the_reason_says_why_it_stays(
    prefiller: dict[str, Any], decoder: dict[str, Any], blocks: int, reason: str
) -> None:
    decision = decide(engine("p", Role.PREFILL, **prefiller), engine("d", Role.DECODE, **decoder), blocks=blocks)
    assert (decision.reason, decision.prefill) == (reason, ())


def test_without_anybody_to_prefill_elsewhere_it_says_so() -> None:
    assert decide(engine("d", Role.DECODE), engine("e", Role.DECODE)).reason == "pd-no-prefiller"


def test_a_pool_of_engines_that_serve_whole_requests_is_never_disaggregated() -> None:
    assert decide(engine("a", Role.BOTH, **BUSY), engine("b", Role.BOTH)).reason == "aggregated"


def test_one_endpoint_is_never_both_legs_of_a_request() -> None:
    decision = decide(engine("b", Role.BOTH), engine("d", Role.DECODE, **BUSY))
    assert not decision.prefill or decision.prefill[0].id != decision.decode[0].id


def test_a_queue_has_one_price_wherever_the_prompt_is_computed() -> None:
    """Nobody was prefilled on the decode endpoint lately: that is no reason to put a long prompt there."""
    decoder: dict[str, Any] = {"decoding": 12, "requests": 12, "step_s": 0.015}
    long = decide(engine("p", Role.PREFILL, delayed_per_s=4.0), engine("d", Role.DECODE, **decoder), blocks=1024)
    assert long.reason == "pd"
    busy = engine("p", Role.PREFILL, queued_s=0.5, queued_tokens=4500, requests=1, delayed_per_s=4.0)
    assert decide(busy, engine("d", Role.DECODE, **decoder), blocks=1024).reason == "pd-prefill-busy"


def test_both_ways_are_told_and_the_cheaper_one_is_taken() -> None:
    for busy, blocks, apart in ((BUSY, 512, True), ({}, 2, False)):
        decision = decide(engine("p", Role.PREFILL), engine("d", Role.DECODE, **busy), blocks=blocks)
        told = decision.compared
        assert told is not None
        assert (told.prefill, told.decode, told.whole) == ("p", "d", "d")
        assert bool(decision.prefill) is apart
        assert (told.prefill_cost + told.decode_cost < told.whole_cost) is apart
        assert told.apart_ttft_s > 0 < told.whole_ttft_s


def test_where_nobody_can_prefill_nothing_is_compared() -> None:
    assert decide(engine("d", Role.DECODE)).compared is None
