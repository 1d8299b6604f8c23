"""The scheduler core: order, time, hits, blocks and events, without a clock or an event loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict, Unpack

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.simulator.blocks import BlockCache
from loadtest.simulator.engine import EngineCore, Phase, Request
from loadtest.simulator.events import CacheEvent, Cleared, Removed, Stored
from loadtest.simulator.settings import load_profiles

PROFILE = load_profiles()["8b"]


def core(
    blocks: int = 256,
    block_size: int = 16,
    *,
    chunk: int | None = None,
    max_seqs: int | None = None,
    by_priority: bool = False,
    lease_s: float = 30.0,
) -> EngineCore:
    cache = BlockCache(blocks, block_size)
    return EngineCore(PROFILE, cache, chunk=chunk, max_seqs=max_seqs, by_priority=by_priority, lease_s=lease_s)


class Options(TypedDict, total=False):
    """Of a `Request`, what a test may choose."""

    salt: str
    lora: tuple[int, str]
    priority: int
    hold: bool
    remote: bool


def request(name: str, prompt: Iterable[int], output: int = 4, **options: Unpack[Options]) -> Request:
    return Request(name, list(prompt), list(range(9000, 9000 + output)), **options)


def drive(engine: EngineCore, now: float = 0.0) -> tuple[float, list[str]]:
    """Step until nothing runs: (the time then, names in the order of their ends)."""
    ended = []
    while not (step := engine.schedule(now)).empty:
        now += step.duration_s
        ended += [p.request.request_id for p in engine.complete(step, now) if p.request.phase is Phase.FINISHED]
    return now, ended


def test_a_lone_request_takes_its_prefill_and_its_decode_steps() -> None:
    engine = core()
    only = request("a", range(1000), output=3)
    engine.add(only, 0.0)
    now, _ = drive(engine)
    assert only.first_token_at is not None
    assert math.isclose(only.first_token_at, PROFILE.prefill_s(1000, 0))
    assert math.isclose(now - only.first_token_at, PROFILE.decode_s(1, 1001) + PROFILE.decode_s(1, 1002))


def test_a_long_prompt_shares_its_steps_with_running_answers() -> None:
    engine = core(blocks=2048, chunk=256)
    short = request("short", range(16), output=50)
    engine.add(short, 0.0)
    engine.complete(engine.schedule(0.0), 0.1)
    engine.add(request("long", range(5000, 6000)), 0.1)
    step = engine.schedule(0.1)
    assert step.decodes == [short]
    assert [(r.request_id, n) for r, n in step.prefills] == [("long", 255)]


def test_no_more_than_max_seqs_run_and_the_rest_wait_in_order() -> None:
    engine = core(max_seqs=2)
    for i in range(4):
        engine.add(request(f"r{i}", range(i * 100, i * 100 + 20)), float(i))
    engine.schedule(4.0)
    assert [r.request_id for r in engine.running] == ["r0", "r1"]
    assert [r.request_id for r in engine.waiting] == ["r2", "r3"]


def test_lower_priority_numbers_overtake_waiting_requests_if_the_policy_says_so() -> None:
    for by_priority, order in ((False, ["a", "b", "c"]), (True, ["c", "b", "a"])):
        engine = core(max_seqs=1, by_priority=by_priority)
        for i, name in enumerate("abc"):
            engine.add(request(name, range(i * 100, i * 100 + 20), priority=3 - i), 0.0)
        assert drive(engine)[1] == order


@given(st.integers(1, 200), st.sampled_from([1, 4, 16, 32]))
def test_a_repeated_prompt_is_cached_but_for_its_last_token(tokens: int, block_size: int) -> None:
    engine = core(blocks=2048, block_size=block_size)
    for name in ("first", "again"):
        engine.add(request(name, range(tokens)), 0.0)
        _, _ = drive(engine)
    again = request("third", range(tokens))
    engine.add(again, 0.0)
    drive(engine)
    assert again.cached_tokens == (tokens - 1) // block_size * block_size


def test_salt_and_adapter_keep_prompts_apart() -> None:
    engine = core()
    variants: list[Options] = [{}, {"salt": "x"}, {"salt": "y"}, {"lora": (1, "a")}, {"lora": (2, "b")}]
    for options in variants:
        fresh = request("r", range(100), **options)
        engine.add(fresh, 0.0)
        drive(engine)
        assert fresh.cached_tokens == 0
    for options in variants:
        known = request("r", range(100), **options)
        engine.add(known, 0.0)
        drive(engine)
        assert known.cached_tokens == 96


def test_what_an_answer_said_is_cached_for_the_next_turn() -> None:
    engine = core()
    engine.add(request("first", range(40), output=41), 0.0)
    drive(engine)
    second = request("second", [*range(40), *range(9000, 9041), 7, 8])
    engine.add(second, 0.0)
    drive(engine)
    # The last token of the answer was never computed: 80 tokens of 81 are there, five blocks.
    assert second.cached_tokens == 80


def test_an_aborted_request_frees_its_blocks_at_once_and_ends_in_no_step() -> None:
    engine = core()
    gone = request("gone", range(100), output=50)
    engine.add(gone, 0.0)
    step = engine.schedule(0.0)
    assert engine.cache.used_fraction > 0
    assert engine.abort(gone, 0.0)
    assert engine.cache.used_fraction == 0
    assert engine.complete(step, 1.0) == []
    assert not engine.abort(gone, 0.0)


def test_a_request_waits_until_its_whole_answer_has_room() -> None:
    engine = core(blocks=8)
    big = request("big", range(64), output=33)
    engine.add(big, 0.0)
    engine.add(request("next", range(500, 540), output=9), 0.0)
    engine.schedule(0.0)
    assert [r.request_id for r in engine.waiting] == ["next"]
    engine.abort(big, 0.0)
    engine.schedule(0.0)
    assert [r.request_id for r in engine.running] == ["next"]


def test_a_prefill_leg_keeps_its_blocks_until_they_are_read_or_the_lease_ends() -> None:
    engine = core(lease_s=30.0)
    for name in ("read", "left"):
        engine.add(request(name, range(64), output=1, hold=True), 0.0)
    drive(engine)
    assert set(engine.pinned) == {"read", "left"}
    assert engine.release_pin("read")
    assert not engine.release_pin("read")
    engine.expire_pins(29.0)
    assert set(engine.pinned) == {"left"}
    engine.expire_pins(31.0)
    assert engine.cache.used_fraction == 0
    assert engine.counters.expired_pins == 1


def test_a_decode_leg_computes_one_token_of_a_prompt_that_arrived() -> None:
    engine = core()
    leg = request("leg", range(100), remote=True)
    engine.add(leg, 0.0)
    step = engine.schedule(0.0)
    assert step.loads == [leg] and step.empty
    engine.loaded(leg)
    step = engine.schedule(0.0)
    assert [n for _, n in step.prefills] == [1]
    engine.complete(step, 0.1)
    drive(engine)
    assert (leg.cached_tokens, leg.external_tokens) == (0, 100)
    assert engine.counters.transferred == 100
    follower = request("follower", range(100))
    engine.add(follower, 0.0)
    drive(engine)
    assert follower.cached_tokens == 96


def test_a_decode_leg_whose_prompt_cannot_be_had_computes_it() -> None:
    engine = core()
    leg = request("leg", range(100), remote=True)
    engine.add(leg, 0.0)
    engine.schedule(0.0)
    engine.load_failed(leg)
    assert drive(engine)[1] == ["leg"]
    assert engine.counters.local_compute == 100


def replay(events: Iterable[CacheEvent], state: Counter[bytes]) -> None:
    for event in events:
        match event:
            case Stored(hashes=hashes):
                state.update(hashes)
            case Removed(block_hash=value):
                state[value] -= 1
                assert state[value] >= 0
            case Cleared():
                state.clear()


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """(what, prefix family, prompt length, answer length) in order."""
    step = st.tuples(
        st.sampled_from(["add", "add", "add", "step", "step", "step", "abort", "reset"]),
        st.integers(0, 2),
        st.integers(1, 60),
        st.integers(1, 20),
    )
    return draw(st.lists(step, min_size=1, max_size=60))


@settings(max_examples=150, deadline=None)
@given(scripts(), st.integers(1, 4))
def test_whatever_happens_events_lead_to_the_cache_and_no_block_is_lost(
    script: list[tuple[str, int, int, int]], max_seqs: int
) -> None:
    engine = core(blocks=24, block_size=4, max_seqs=max_seqs, chunk=16)
    state: Counter[bytes] = Counter()
    added: list[Request] = []
    now = 0.0
    for number, (what, family, prompt, output) in enumerate(script):
        if what == "add":
            added.append(request(f"r{number}", [family * 1000 + i for i in range(prompt)], output))
            engine.add(added[-1], now)
        elif what == "step":
            step = engine.schedule(now)
            now += step.duration_s
            engine.complete(step, now)
        elif what == "abort" and added:
            engine.abort(added[family % len(added)], now)
        elif what == "reset":
            engine.cache.reset()
        replay(engine.cache.take_events(), state)
        assert +state == Counter(engine.cache.cached_hashes())
    now, _ = drive(engine, now)
    assert not engine.running and not engine.waiting
    assert engine.cache.free_blocks == 24
    assert engine._reserved == 0
    assert all(not r.alive for r in added)
