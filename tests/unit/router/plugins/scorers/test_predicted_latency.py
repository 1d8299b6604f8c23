"""The least predicted cost wins: for the prompt, for those under way, and for what is cached."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Candidate, EngineEstimate, InferenceRequest, Inflight
from router.errors import ConfigError
from router.plugins.scorers.predicted_latency import PredictedLatencyScorer
from router.scheduling.cost import Terms, Weights, ask, assumed, cheapest_handed, costs, handed, local
from tests.support.scheduling import NOW, candidate, context, prompt, request

SCORER = PredictedLatencyScorer()
FAST = EngineEstimate(
    overhead_s=0.002,
    token_s=1 / 9000,
    pair_s=1.6e-9,
    step_base_s=0.012,
    step_seq_s=5e-5,
    step_kv_s=2.7e-8,
    transfer_base_s=0.005,
    transfer_token_s=5e-6,
    chunk=8192,
    head_at=NOW,
    missed_per_token=0.4,
)


def engine(id_: str = "a", *, matched: int = 0, like: EngineEstimate = FAST, **changed: Any) -> Candidate:
    estimate = msgspec.structs.replace(like, **changed)
    known = candidate(id_, matched=matched, inflight=estimate.requests, prefill_tokens=estimate.queued_tokens)
    return Candidate(known.state, known.inflight, known.match, None, estimate)


def scores(*candidates: Candidate, blocks: int = 256, asked: InferenceRequest | None = None) -> list[float]:
    return SCORER.score(context(prompt(blocks), request_=asked), candidates)


def terms(one: Candidate, blocks: int = 256, asked: InferenceRequest | None = None) -> Terms:
    what = ask(asked or request(), prompt(blocks), context().leg, [one])
    return local(what, one, Weights(), NOW)


def test_the_endpoint_that_holds_the_prompt_wins_until_its_queue_costs_more_than_computing_it() -> None:
    cold = engine("cold")
    held, other = scores(engine("warm", matched=240), cold)
    assert held == 1.0 > other
    held, other = scores(engine("warm", matched=240, queued_s=3.0, queued_tokens=27_000, requests=3), cold)
    assert held < 1.0 == other


def test_a_slower_engine_loses_by_what_it_is_slower() -> None:
    slow = engine("slow", token_s=3 / 9000)
    fast, slower = scores(engine("fast"), slow)
    assert fast == 1.0 > slower
    assert terms(slow).own == pytest.approx(3 * terms(engine()).own, rel=0.1)


def test_those_near_the_least_are_equal_so_that_the_picker_spreads_them() -> None:
    assert scores(engine("a"), engine("b", overhead_s=0.0021), engine("c", token_s=1.5 / 9000))[:2] == [1.0, 1.0]
    assert scores(engine("c", token_s=1.5 / 9000), engine("a"))[0] < 1.0


def test_a_queue_shrinks_as_its_head_is_computed_and_no_further() -> None:
    def pending(head_at: float) -> float:
        return terms(engine(queued_s=3.0, head_s=1.0, head_at=head_at, queued_tokens=9000, requests=1)).pending

    assert pending(NOW) == 3.0
    assert pending(NOW - 0.5) == 2.5
    assert pending(NOW - 100.0) == pytest.approx(2.05)


def test_answers_under_way_weigh_against_a_long_prefill() -> None:
    idle, busy = terms(engine()), terms(engine(decoding=40, requests=40, step_s=0.016))
    assert idle.interference == 0.0 < busy.interference
    assert busy.answer > idle.answer
    assert busy.steps > idle.steps == 0.0


def test_what_is_thrown_away_costs_as_much_as_will_be_asked_for_again() -> None:
    full: dict[str, Any] = {"capacity_tokens": 100_000, "held_tokens": 10_000, "free_tokens": 0}
    little, much = terms(engine(**full, missed_per_token=0.1)), terms(engine(**full, missed_per_token=0.4))
    assert much.eviction == pytest.approx(4 * little.eviction)
    assert little.eviction > 0.0
    assert terms(engine(**full, missed_per_token=0.0)).eviction == 0.0
    assert terms(engine(**full | {"free_tokens": 50_000})).eviction == 0.0
    assert terms(engine()).eviction == 0.0


def test_prefill_that_will_be_missed_is_dearer_where_it_will_wait_and_most_of_all_where_misses_make_the_queue() -> None:
    full = {"capacity_tokens": 100_000, "held_tokens": 10_000, "free_tokens": 0, "delayed_per_s": 0.4}

    def eviction(**changed: Any) -> float:
        return terms(engine(**full | changed)).eviction

    busy = {"queued_s": 10.0, "queued_tokens": 90_000, "requests": 4}
    seldom = eviction(missed_per_token=0.1, **busy) / eviction(missed_per_token=0.1)
    mostly = eviction(missed_per_token=2.0, **busy) / eviction(missed_per_token=2.0)
    assert 1.0 < seldom < mostly < 1.0 + 0.4 * 10.0


def test_waiting_for_kv_space_counts() -> None:
    tight = terms(engine(capacity_tokens=100_000, held_tokens=99_000, decoding=20, requests=20, step_s=0.015))
    assert tight.memory > 0.0
    assert tight.ttft > tight.pending + tight.own / 2


def test_other_routers_requests_count_though_the_model_does_not_see_them() -> None:
    known = engine()
    inflight = candidate("a", inflight=10, prefill_tokens=20_000).inflight
    crowded = Candidate(known.state, inflight, known.match, None, known.estimate, inflight)
    assert terms(crowded).pending == pytest.approx(20_000 / 9000)
    assert terms(crowded).interference > 0.0


def test_other_routers_requests_fill_kv_space_too() -> None:
    known = engine(capacity_tokens=100_000, free_tokens=60_000, held_tokens=40_000, step_s=0.015)
    theirs = Inflight(20, 0, 59_990)
    crowded = Candidate(known.state, theirs, known.match, None, known.estimate, theirs)
    assert terms(known).memory == terms(known).eviction == 0.0
    assert terms(crowded).memory > 0.0
    assert terms(crowded).eviction > 0.0


def test_an_objective_that_would_be_missed_costs_and_one_that_nobody_set_does_not() -> None:
    slow = engine("slow", matched=128, queued_s=1.0, queued_tokens=9000, requests=1)
    asked = request(routing_headers={"x-llm-d-slo-ttft-ms": "500"})
    assert terms(slow).slo == 0.0 < terms(slow, asked=asked).slo
    assert terms(engine(), asked=request(routing_headers={"x-llm-d-slo-tpot-ms": "5"})).slo > 0.0
    for nonsense in ("soon", "-1", "nan", "inf", ""):
        assert terms(slow, asked=request(routing_headers={"x-llm-d-slo-ttft-ms": nonsense})).slo == 0.0


def test_without_an_engine_model_own_inflight_counts_stand_for_the_work() -> None:
    assert scores(candidate("a", prefill_tokens=30_000), candidate("b"))[0] < 1.0
    assert scores(candidate("a", matched=200), candidate("b"))[1] < 1.0
    assert assumed(candidate("a").inflight).prefill_confidence == 0.0


@given(
    st.lists(
        st.tuples(st.integers(0, 256), st.floats(0, 100), st.integers(0, 300), st.integers(0, 10**6)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 256),
)
def test_scores_lie_in_0_to_1_and_somebody_has_1(pool: list[tuple[int, float, int, int]], blocks: int) -> None:
    known = [
        engine(str(i), matched=min(m, blocks), queued_s=q, decoding=d, requests=d, step_s=0.02 * bool(d),
               capacity_tokens=450_000, held_tokens=h)
        for i, (m, q, d, h) in enumerate(pool)
    ]  # fmt: skip
    found = scores(*known, blocks=blocks)
    assert max(found) == 1.0
    assert all(0.0 < score <= 1.0 for score in found)


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.floats(0, 100), st.integers(0, 300), st.integers(0, 10**6), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 256),
    st.sampled_from(({}, {"x-llm-d-slo-ttft-ms": "300"}, {"x-llm-d-slo-tpot-ms": "20"})),
)
def test_the_sum_that_decides_is_the_sum_of_the_terms_that_are_explained(
    pool: list[tuple[int, float, int, int, bool]], blocks: int, headers: dict[str, str]
) -> None:
    known = [
        engine(str(i), matched=m, queued_s=q, head_s=q / 2, head_at=NOW - 1.0, queued_tokens=int(q * 9000), decoding=d,
               requests=d * alone, step_s=0.02 * bool(d), capacity_tokens=450_000, held_tokens=h, delayed_per_s=q / 50)
        for i, (m, q, d, h, alone) in enumerate(pool)
    ]  # fmt: skip
    known.append(candidate("unknown", prefill_tokens=9000, inflight=1))
    held = prompt(blocks).block_hashes
    known.append(engine("hot", matched=blocks // 2, users=dict.fromkeys(held, 3)))
    what = ask(request(routing_headers=headers), prompt(blocks), context().leg, known)
    assert costs(what, known, Weights(), NOW) == pytest.approx([local(what, c, Weights(), NOW).total for c in known])
    handed_over = [handed(what, c, Weights(), NOW).total for c in known]
    assert handed_over[cheapest_handed(what, known, Weights(), NOW)] == pytest.approx(min(handed_over))


def test_a_queue_costs_more_the_more_others_will_come_to_wait_in_it() -> None:
    """And the price is the pool's: an engine that is given few prompts is not the one to take the long ones."""
    queued: dict[str, Any] = {"queued_s": 1.0, "queued_tokens": 9000, "requests": 1}
    calm, rushed = terms(engine(**queued)), terms(engine(**queued, delayed_per_s=2.0))
    assert calm.delay == 0.0 < rushed.delay
    assert rushed.delay == pytest.approx(2.0 * rushed.own * (rushed.pending + rushed.own / 2))
    assert scores(engine("a", delayed_per_s=0.1), engine("b", delayed_per_s=3.0)) == [1.0, 1.0]


def test_a_prefix_that_many_ask_for_is_computed_again_before_those_who_hold_it_are_crowded() -> None:
    held = dict.fromkeys(prompt(256).block_hashes, 30)
    busy: dict[str, Any] = {"matched": 250, "decoding": 8, "requests": 8, "step_s": 0.015}
    crowded, alone = engine("a", **busy, users=held), engine("a", **busy, users={})
    assert scores(alone, engine("b"))[1] < 1.0
    assert scores(crowded, engine("b"))[1] == 1.0
    what = ask(request(), prompt(256), context().leg, [crowded, engine("b")])
    cold = local(what, engine("b"), Weights(), NOW)
    assert -cold.own < cold.reuse < -0.9 * cold.own
    assert cold.ttft == terms(engine("b")).ttft


def test_a_weight_below_0_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="interference"):
        PredictedLatencyScorer.create({"interference": -1})
