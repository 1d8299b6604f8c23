"""Recorded events of a real vLLM end in the state they imply, and prompts find the blocks the engine stored."""

from __future__ import annotations

import pytest

from kvindex import Match, MemoryIndex, Tier, block_hashes, chain_root
from kvindex.events import Message
from kvindex.ingest import EXACT, Ingest
from kvindex.operations import Resync, apply_operations
from tests.support.kvindex import Clock, leading
from tests.support.kvindex_captures import BLOCK_SIZE, MODEL, Capture, ImpliedState, SetSink, captures

E = "engine"
COMPLETE = [capture for capture in captures() if capture.messages()[0].sequence == 0]


def ids(capture: Capture) -> str:
    return capture.path.stem


@pytest.fixture(params=captures(), ids=ids)
def capture(request: pytest.FixtureRequest) -> Capture:
    assert isinstance(request.param, Capture)
    return request.param


def fed_by_replay(ingest: Ingest, sink: SetSink, messages: list[Message]) -> None:
    assert apply_operations(ingest.start(), sink, E) == Resync(0, "start")
    for message in messages:
        assert apply_operations(ingest.replayed(message), sink, E) is None
    apply_operations(ingest.replay_ended(), sink, E)


@pytest.mark.parametrize("capture", COMPLETE, ids=ids)
def test_the_index_ends_in_the_implied_state(capture: Capture) -> None:
    ingest, sink, implied = Ingest(MODEL, BLOCK_SIZE), SetSink(), ImpliedState()
    fed_by_replay(ingest, sink, [])
    index = MemoryIndex(Clock())
    contiguous = True
    for expected, (message, events) in enumerate(capture.decoded()):
        contiguous = contiguous and message.sequence == expected
        if not contiguous:
            break
        operations = ingest.live(message)
        assert apply_operations(operations, sink, E) is None
        apply_operations(operations, index, E)
        implied.apply(events)
        for tier in Tier:
            assert sink.keys(E, tier) == implied.keys(tier)
    assert ingest.state == EXACT
    assert ingest.counters.malformed == ingest.counters.unknown_parents == ingest.counters.unindexable == 0
    assert ingest.counters.unknown_hashes == implied.unknown
    if any(sink.held.values()):
        assert index.stats().blocks[E] == {tier: len(implied.keys(tier)) for tier in Tier}
    for tier in Tier:
        for key in implied.keys(tier):
            match = index.match([key])[E]
            assert (match.blocks, match.device) == (1, int(key in implied.keys(Tier.DEVICE)))


@pytest.mark.parametrize("capture", [each for each in COMPLETE if each.requests()], ids=ids)
def test_every_prompt_block_the_engine_stored_is_found(capture: Capture) -> None:
    ingest, implied, index = Ingest(MODEL, BLOCK_SIZE), ImpliedState(), MemoryIndex(Clock())
    ingest.start()
    ingest.replay_ended()
    root = chain_root(MODEL)
    prompts = {}
    for request in capture.requests():
        salt = request.get("cache_salt") or request.get("request", {}).get("cache_salt")
        prompts[request["name"]] = block_hashes(request["prompt_token_ids"], BLOCK_SIZE, root, cache_salt=salt)
    found = dict.fromkeys(prompts, 0)
    for message, events in capture.decoded():
        apply_operations(ingest.live(message), index, E)
        implied.apply(events)
        for name, keys in prompts.items():
            match = index.match(keys)
            blocks = match[E].blocks if E in match else 0
            assert blocks == leading(keys, implied.keys(Tier.DEVICE))
            found[name] = max(found[name], blocks)
    assert found == {name: len(keys) for name, keys in prompts.items()}


def test_every_capture_decodes(capture: Capture) -> None:
    ingest, sink = Ingest(MODEL, BLOCK_SIZE), SetSink()
    fed_by_replay(ingest, sink, capture.messages())
    assert ingest.counters.malformed == ingest.counters.unknown_events == 0
    assert ingest.counters.batches > 0


def test_adapters_and_salts_get_the_keys_their_requests_have() -> None:
    [capture] = [each for each in captures() if each.path.stem == "lora_and_salt_replay"]
    checked = set()
    for message, events in capture.decoded():
        event = next(event for event in events if event["type"] == "BlockStored")
        ingest, sink = Ingest(MODEL, BLOCK_SIZE), SetSink()
        ingest.start()
        ingest.replay_failed("no replay socket")
        apply_operations(ingest.live(message), sink, E)
        lora, extras = event["lora_name"], event["extra_keys"][0] or []
        salt = next((extra for extra in extras if extra != lora), None)
        keys = block_hashes(event["token_ids"], BLOCK_SIZE, chain_root(MODEL, lora), cache_salt=salt)
        assert sink.keys(E, Tier.DEVICE).issuperset(keys)
        checked.add((lora, salt))
    assert {("lora-a", None), (None, "tenant-a"), ("lora-b", "tenant-b"), (None, None)} <= checked


def test_ranks_of_one_engine_are_endpoints_of_their_own() -> None:
    index = MemoryIndex(Clock())
    prompts = {}
    for capture in captures():
        if not capture.path.stem.startswith("dp2_rank"):
            continue
        rank = f"engine/{capture.path.stem[-1]}"
        ingest = Ingest(MODEL, BLOCK_SIZE)
        ingest.start()
        ingest.replay_ended()
        for message, [event] in capture.decoded():
            apply_operations(ingest.live(message), index, rank)
            prompts[rank] = block_hashes(event["token_ids"], BLOCK_SIZE, chain_root(MODEL))
    assert len(prompts) == 2
    for rank, keys in prompts.items():
        assert index.match(keys) == {rank: Match(2, 2)}
