"""One model for each endpoint: its laws come out of what the router sees, and what it has to do is counted exactly."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.capacity.engine_model import EngineModels
from router.capacity.laws import Profile
from router.core import Leg
from router.observability.events import Outcome
from tests.support.capacity import BLOCK, CAPACITY, Clock, Story, Truth


def story(prior: Profile | None = None) -> Story:
    clock = Clock()
    return Story(EngineModels(clock, prior=prior), clock)


@pytest.mark.parametrize("rate", [1_500.0, 9_000.0, 40_000.0])
def test_the_prefill_rate_is_learnt_whether_the_prior_is_far_too_fast_or_far_too_slow(rate: float) -> None:
    told = story()
    truth = Truth(rate=rate)
    told.serve(truth, random.Random(1), requests=120)
    learnt = told.models.profiles()["a"]
    for tokens, context in ((1024, 0), (8192, 4096), (16_384, 8192)):
        predicted = learnt.overhead_s + learnt.token_s * tokens + learnt.pair_s * tokens * (context + tokens / 2)
        assert predicted == pytest.approx(truth.prefill_s(tokens, context), rel=0.12)
    assert told.models.estimate("a").prefill_confidence > 0.7


def test_the_decode_step_is_learnt_beside_the_prefills_that_interrupt_it() -> None:
    told = story()
    told.serve(Truth(step_s=0.025), random.Random(2), requests=150)
    learnt = told.models.profiles()["a"]
    assert learnt.step_base_s + learnt.step_seq_s + learnt.step_kv_s * 12_000 == pytest.approx(0.025, rel=0.1)


def test_each_endpoint_has_its_own_law() -> None:
    told = story()
    for _ in range(20):
        told.serve(Truth(rate=9_000), random.Random(3), requests=8, endpoint="a")
        told.serve(Truth(rate=3_000), random.Random(3), requests=8, endpoint="b")
    fast, slow = told.models.estimate("a"), told.models.estimate("b")
    assert slow.token_s == pytest.approx(3 * fast.token_s, rel=0.15)


def test_an_endpoint_that_joins_is_taken_for_a_typical_one_and_learns_for_itself() -> None:
    told = story()
    for name in ("a", "b", "c"):
        told.serve(Truth(rate=20_000), random.Random(4), requests=60, endpoint=name)
    new = told.models.estimate("d")
    assert new.token_s == pytest.approx(1 / 20_000, rel=0.15)
    assert new.prefill_confidence == 0.0
    told.serve(Truth(rate=5_000), random.Random(4), requests=60, endpoint="d")
    assert told.models.estimate("d").token_s == pytest.approx(1 / 5_000, rel=0.2)


def test_an_endpoint_not_tried_yet_is_never_taken_for_slower_than_those_that_are_known() -> None:
    told = story(Profile(token_s=1 / 500))
    told.models.estimate("b")
    told.serve(Truth(rate=9_000), random.Random(8), requests=60, endpoint="a")
    assert told.models.estimate("b").token_s == pytest.approx(1 / 9_000, rel=0.2)


def test_what_waits_shrinks_as_time_passes_but_not_below_nothing() -> None:
    told = story()
    told.dispatch(tokens=8192)
    told.dispatch(tokens=4096)
    estimate = told.models.estimate("a")
    assert estimate.queued_tokens == 12_288
    assert estimate.queued_s > estimate.head_s > 0
    assert estimate.head_at == told.clock.now


def test_first_tokens_move_requests_from_waiting_to_decoding_and_ends_take_them_away() -> None:
    told = story()
    one, two = told.dispatch(tokens=8192), told.dispatch(tokens=4096)
    told.clock.now += 1.0
    told.first_token(one)
    estimate = told.models.estimate("a")
    assert (estimate.queued_tokens, estimate.decoding, estimate.head_at) == (4096, 1, told.clock.now)
    assert estimate.step_s > 0
    told.end(one)
    told.end(two, outcome=Outcome.CLIENT_GONE)
    estimate = told.models.estimate("a")
    assert (estimate.queued_tokens, estimate.queued_s, estimate.decoding, estimate.step_s) == (0, 0, 0, 0)
    assert estimate.held_tokens == 0


def test_an_answer_that_does_not_stream_stops_waiting_when_a_later_one_begins_or_its_time_is_over() -> None:
    told = story()
    told.dispatch(tokens=4096, streams=False)
    later = told.dispatch(tokens=4096)
    told.clock.now += 0.9
    told.first_token(later)
    assert (told.models.estimate("a").queued_tokens, told.models.estimate("a").decoding) == (0, 2)
    told.dispatch(tokens=4096, streams=False)
    assert told.models.estimate("a").queued_tokens == 4096
    told.clock.now += 30.0
    assert (told.models.estimate("a").queued_tokens, told.models.estimate("a").decoding) == (0, 3)


def test_a_prefill_leg_ends_with_its_one_token_and_teaches_the_prefill_law() -> None:
    told = story()
    for _ in range(60):
        leg = told.dispatch("p", tokens=8192, leg=Leg.PREFILL)
        told.clock.now += 8192 / 4000
        told.first_token(leg, "p", Leg.PREFILL)
    estimate = told.models.estimate("p")
    assert (estimate.queued_tokens, estimate.decoding, estimate.held_tokens) == (0, 0, 0)
    assert estimate.token_s * 8192 + estimate.overhead_s + estimate.pair_s * 8192**2 / 2 == pytest.approx(
        8192 / 4000, rel=0.1
    )


def test_the_time_of_a_hand_off_is_learnt_on_the_decode_side() -> None:
    told = story()
    rng = random.Random(5)
    for _ in range(120):
        tokens = rng.randint(2, 40) * BLOCK
        leg = told.dispatch("d", tokens=tokens, prefills=False)
        told.clock.now += 0.02 + tokens * 4e-5
        told.first_token(leg, "d")
        told.clock.now += 0.012 * 20
        told.end(leg, output=21)
    estimate = told.models.estimate("d")
    assert estimate.queued_tokens == 0
    assert estimate.transfer_base_s + 8192 * estimate.transfer_token_s == pytest.approx(0.02 + 8192 * 4e-5, rel=0.15)


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    told = story()
    name = told.dispatch("a")
    told.failed(name)
    told.dispatch("b", request_id=name)
    assert told.models.estimate("a").queued_tokens == 0
    assert told.models.estimate("b").queued_tokens == 4096


def test_memory_in_use_is_known_from_what_is_in_flight() -> None:
    told = story()
    name = told.dispatch(tokens=20 * BLOCK, output=100)
    estimate = told.models.estimate("a")
    assert estimate.capacity_tokens == CAPACITY
    assert estimate.held_tokens == 20 * BLOCK + 100
    told.first_token(name)
    told.end(name)
    assert told.models.estimate("a").held_tokens == 0


def test_what_is_evicted_costs_what_the_pool_asks_for_again_at_that_age() -> None:
    """Ten prompts, each asked for every minute, on an engine that has no room for more."""
    told = story()
    for _ in range(20):
        for number in range(10):
            told.clock.now += 6.0
            name = told.dispatch(tokens=20 * BLOCK, document=number)
            told.first_token(name)
            told.end(name)
    assert told.models.estimate("a").missed_per_token > 0.3
    told.clock.now += 3600.0
    assert told.models.estimate("a").missed_per_token < 0.01


def test_what_was_learnt_can_be_kept_and_given_to_the_next_process() -> None:
    told = story()
    told.serve(Truth(rate=20_000), random.Random(6), requests=60)
    later = EngineModels(Clock())
    later.load(told.models.profiles())
    assert later.estimate("a").token_s == pytest.approx(told.models.estimate("a").token_s)
    assert later.estimate("a").prefill_confidence == 0.0


def test_an_endpoint_that_leaves_is_forgotten_and_its_late_ends_harm_nobody() -> None:
    told = story()
    name = told.dispatch("a")
    told.models.forget("a")
    told.first_token(name)
    told.end(name)
    assert told.models.estimate("a").decoding == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("dftexg"), st.integers(0, 5), st.booleans()), max_size=60))
def test_whatever_happens_in_whatever_order_nothing_leaks(steps: list[tuple[str, int, bool]]) -> None:
    told = story()
    for act, which, flag in steps:
        name = f"r{which}"
        told.clock.now += 0.01
        if act == "d":
            told.dispatch("ab"[flag], request_id=name, tokens=512 * (which + 1), streams=which % 2 == 0, prefills=flag)
        elif act == "f" and name in told.ids:
            told.failed(name)
        elif act == "t" and name in told.ids:
            told.first_token(name, "ab"[flag])
        elif act == "e" and name in told.ids:
            told.end(name, output=flag * 30)
        elif act == "x":
            told.clock.now += 20
            told.models.estimate("a")
        elif act == "g":
            told.models.forget("a")
    for name in told.ids:
        told.end(name, outcome=Outcome.CLIENT_GONE)
    for endpoint in "ab":
        estimate = told.models.estimate(endpoint)
        assert (estimate.queued_tokens, estimate.decoding, estimate.held_tokens) == (0, 0, 0)
        assert estimate.queued_s == pytest.approx(0, abs=1e-12)
