"""What is told of a decision: of one with prefill and decode apart, both legs and the time of the whole."""

from __future__ import annotations

import pytest

from router.core import Decision, Role
from router.scheduling.cost import predicted_s
from router.scheduling.explanation import expected_ttft_s, explain, short_form
from tests.support.scheduling import NOW, candidate, prompt, request
from tests.unit.router.plugins.deciders.test_cost_pd import BUSY, decide, engine

ASKED = prompt(512)


def test_the_time_of_a_decision_is_that_of_both_legs() -> None:
    prefill, decode = engine("p", Role.PREFILL), engine("d", Role.DECODE, **BUSY)
    apart = Decision(decode=(decode,), prefill=(prefill,), reason="pd")
    ahead = predicted_s(ASKED, prefill, NOW)
    handed = predicted_s(ASKED, decode, NOW, prefills=False)
    assert ahead is not None
    assert handed is not None
    assert expected_ttft_s(ASKED, apart, NOW) == ahead + handed
    assert expected_ttft_s(ASKED, Decision(decode=(decode,)), NOW) == predicted_s(ASKED, decode, NOW)


def test_without_an_engine_model_no_time_is_made_up() -> None:
    unknown = candidate("u", role=Role.PREFILL)
    assert expected_ttft_s(ASKED, Decision(decode=(candidate("a"),)), NOW) is None
    assert expected_ttft_s(ASKED, Decision(decode=(engine("d", Role.DECODE),), prefill=(unknown,)), NOW) is None


def test_the_decider_and_the_explanation_tell_the_same() -> None:
    pool = engine("p", Role.PREFILL), engine("d", Role.DECODE, **BUSY)
    decision = decide(*pool)
    told = explain(request(), ASKED, decision, pool, NOW)
    assert told.compared == decision.compared
    assert told.weighed
    assert told.compared is not None
    assert told.predicted_ttft_s == pytest.approx(told.compared.apart_ttft_s, rel=0.05)


def test_a_pair_that_was_chosen_without_reckoning_has_its_cost_too() -> None:
    pool = prefill, decode = engine("p", Role.PREFILL), engine("d", Role.DECODE, **BUSY)
    told = explain(request(), ASKED, Decision(decode=(decode,), prefill=(prefill,), reason="pd"), pool, NOW)
    assert told.compared is not None
    assert (told.compared.prefill, told.compared.decode, told.compared.whole) == ("p", "d", "d")
    assert not told.weighed
    rows = {row.endpoint: row for row in told.candidates}
    assert told.compared.prefill_cost == pytest.approx(rows["p"].terms["total"], abs=1e-5)
    assert told.compared.whole_cost == pytest.approx(rows["d"].terms["total"], abs=1e-5)
    assert explain(request(), ASKED, Decision(decode=(decode,)), pool, NOW).compared is None


def test_the_short_form_has_the_whole_time_and_that_of_each_leg() -> None:
    decision = decide(engine("p", Role.PREFILL), engine("d", Role.DECODE, **BUSY))
    whole = expected_ttft_s(ASKED, decision, NOW)
    assert whole is not None
    parts = dict(part.split("=", 1) for part in short_form(ASKED, decision, NOW).split("; "))
    assert parts["ttft"] == f"{whole:.3f}"
    legs = [float(parts[leg].rpartition("ttft=")[2]) for leg in ("prefill", "decode")]
    assert sum(legs) == pytest.approx(whole, abs=0.002)
