"""KV events reach subscribers as vLLM sends them, and can be replayed from any sequence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from loadtest.simulator import RunningEngine
from loadtest.simulator.hashing import as_int
from loadtest.simulator.publisher import END_OF_REPLAY
from tests.support.simulator import FAST, engines, http


@asynccontextmanager
async def socket(kind: int, port: int) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    opened = context.socket(kind)
    opened.setsockopt(zmq.LINGER, 0)
    try:
        if kind == zmq.SUB:
            opened.subscribe(b"")
        opened.connect(f"tcp://127.0.0.1:{port}")
        yield opened
    finally:
        opened.close()
        context.term()


async def receive(opened: zmq.asyncio.Socket) -> list[bytes]:
    return await asyncio.wait_for(opened.recv_multipart(), 20)


async def replay(port: int, first: int) -> list[tuple[bytes, int, Any]]:
    """What the replay socket answers to one request: (topic, sequence, payload) of each kept batch."""
    batches: list[tuple[bytes, int, Any]] = []
    async with socket(zmq.DEALER, port) as dealer:
        await dealer.send_multipart((b"", first.to_bytes(8, "big")))
        while True:
            empty, topic, sequence, payload = await receive(dealer)
            assert empty == b""
            if sequence == END_OF_REPLAY:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append((topic, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))


async def ask(engine: RunningEngine, count: int = 3) -> None:
    async with http(engine.url) as client:
        for i in range(count):
            await client.post("/v1/completions", json={"prompt": [i * 100 + n for n in range(70)], "max_tokens": 30})


async def test_a_subscriber_gets_numbered_batches_of_the_engines_topic() -> None:
    async with engines(FAST) as (engine,), socket(zmq.SUB, engine.event_ports[0][0]) as subscriber:
        while True:
            # The subscription takes a moment; a fresh prompt is stored each time until it is there.
            await ask(engine, 1)
            await engine_reset(engine)
            if await subscriber.poll(200):
                break
        topic, first, payload = await receive(subscriber)
        timestamp, events, rank = msgspec.msgpack.decode(payload)
    assert topic.decode() == engine.engine.publishers[0].topic
    assert len(first) == 8
    assert timestamp > 1e9
    assert rank == 0
    assert {event["type"] for event in events} <= {"BlockStored", "BlockRemoved", "AllBlocksCleared"}


async def engine_reset(engine: RunningEngine) -> None:
    async with http(engine.url) as client:
        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


async def test_a_replay_from_the_start_leads_to_the_engines_cache() -> None:
    async with engines(FAST, num_gpu_blocks=16) as (engine,):
        await ask(engine)
        batches = await replay(engine.event_ports[0][1], 0)
        cache = engine.engine.ranks[0].core.cache.cached_hashes()
    assert [sequence for _, sequence, _ in batches] == list(range(len(batches)))
    state: Counter[int] = Counter()
    for _, _, (_, events, _) in batches:
        for event in events:
            if event["type"] == "BlockStored":
                assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
                state.update(event["block_hashes"])
            else:
                state.subtract(event["block_hashes"])
    assert +state == Counter({as_int(value): count for value, count in cache.items()})


async def test_a_replay_begins_where_it_is_asked_to_and_keeps_so_many_batches() -> None:
    async with engines(FAST, buffer_steps=4) as (engine,):
        await ask(engine, 5)
        kept = await replay(engine.event_ports[0][1], 0)
        last = kept[-1][1]
        assert [sequence for _, sequence, _ in kept] == list(range(last - 3, last + 1))
        assert [s for _, s, _ in await replay(engine.event_ports[0][1], last)] == [last]
        assert await replay(engine.event_ports[0][1], last + 1) == []


async def test_a_reset_is_told_with_the_next_step() -> None:
    async with engines(FAST) as (engine,):
        await ask(engine, 1)
        await engine_reset(engine)
        before = await replay(engine.event_ports[0][1], 0)
        await ask(engine, 1)
        after = await replay(engine.event_ports[0][1], before[-1][1] + 1)
    assert [event["type"] for event in after[0][2][1]] == ["AllBlocksCleared", "BlockStored"]


async def test_salt_adapter_and_session_are_named_in_events() -> None:
    async with engines(FAST, loras=("lora-a",)) as (engine,), http(engine.url) as client:
        body = {"prompt": list(range(40)), "max_tokens": 1, "cache_salt": "tenant", "model": "lora-a"}
        await client.post("/v1/completions", json=body, headers={"X-Session-ID": "s-1"})
        ((_, _, (_, (event,), _)),) = await replay(engine.event_ports[0][1], 0)
    assert event["extra_keys"] == [["lora-a", "tenant"], ["lora-a"]]
    assert (event["lora_id"], event["lora_name"], event["session_id"]) == (1, "lora-a", "s-1")


async def test_each_rank_publishes_on_its_own_with_its_own_sequence() -> None:
    async with engines(FAST, dp_size=2) as (engine,), http(engine.url) as client:
        for rank in range(2):
            await client.post(
                "/v1/completions",
                json={"prompt": list(range(40)), "max_tokens": 1},
                headers={"X-data-parallel-rank": str(rank)},
            )
        sources = (await client.get("/kv_event_sources")).json()
        for rank, (live, again) in enumerate(engine.event_ports):
            assert sources[str(rank)]["endpoint"] == f"tcp://*:{live}"
            assert sources[str(rank)]["replay_endpoint"] == f"tcp://*:{again}"
            assert [(s, payload[2]) for _, s, payload in await replay(again, 0)] == [(0, rank)]
