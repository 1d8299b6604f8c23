"""What the KV index costs: ``python -m loadtest.bench.kvindex_bench`` prints a table in well under a minute.

Figures are CPU time of this process, the best of several rounds: on a busy machine compare ratios, never absolutes.
The number of blocks held while lookups are timed, which decides how much of the index is in the processor's caches,
is an argument: ``--blocks 1000000``.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from kvindex import MemoryIndex, Mode, Tier, block_hashes, chain_root
from kvindex.events import Message
from kvindex.ingest import Ingest
from kvindex.operations import apply_operations
from loadtest.arguments import Parser, whole

BLOCK = 16
CHAIN = 512
ROUNDS = 7


class Row(NamedTuple):
    what: str
    value: str


def best(run: Callable[[], object], *, times: int) -> float:
    """Seconds of CPU per call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(times):
            run()
        rounds.append((time.process_time() - start) / times)
    return min(rounds)


def keys(rng: random.Random, count: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(count)]


def hashing(rng: random.Random) -> Iterator[Row]:
    tokens = array("I", (rng.randrange(150_000) for _ in range(BLOCK * CHAIN)))
    root = chain_root("model")
    spent = best(lambda: block_hashes(tokens, BLOCK, root), times=50)
    yield Row(f"hash {len(tokens)} tokens in blocks of {BLOCK}", f"{spent * 1e6:.1f} us")
    short = tokens[:256]
    spent = best(lambda: block_hashes(short, BLOCK, root), times=500)
    yield Row("hash 256 tokens", f"{spent * 1e6:.2f} us")


def lookups(rng: random.Random, endpoints: int, blocks: int) -> Iterator[Row]:
    index = MemoryIndex(time.monotonic)
    names = [f"10.0.0.{number}:8000" for number in range(endpoints)]
    for name in names:
        for _ in range(blocks // endpoints // 64):
            index.store(name, keys(rng, 64), Tier.DEVICE)
    shapes = {"held by all": keys(rng, CHAIN), "to different depths": keys(rng, CHAIN), "with holes": keys(rng, CHAIN)}
    for number, name in enumerate(names):
        depth = CHAIN if number == 0 else rng.choice([CHAIN, CHAIN // 2, CHAIN // 4, rng.randrange(1, CHAIN)])
        index.store(name, shapes["held by all"], Tier.DEVICE)
        index.store(name, shapes["to different depths"][:depth], Tier.DEVICE)
        index.store(name, [k for k in shapes["with holes"] if number == 0 or rng.random() < 0.95], Tier.DEVICE)
    for shape, chain in shapes.items():
        # Other objects of equal value, as a request's hashes are.
        asked = list(array("Q", chain))
        spent = best(lambda asked=asked: index.match(asked), times=100)  # type: ignore[misc]
        yield Row(f"match {CHAIN} blocks x {endpoints} endpoints, {shape}", f"{spent * 1e6:.1f} us")
    name = names[0]
    index.set_mode(name, Mode.EXACT)
    new = iter([keys(rng, CHAIN) for _ in range(ROUNDS * 20)])
    spent = best(lambda: index.speculate(name, next(new), 5.0), times=20)
    yield Row(f"speculate {CHAIN} new blocks, {endpoints} endpoints", f"{spent * 1e6:.1f} us")


def encode(sequence: int, events: list[dict[str, Any]]) -> Message:
    return Message(b"kv", sequence, msgspec.msgpack.encode([float(sequence), events, 0]))


def event_stream(rng: random.Random, per_event: int, changes: int, *, keep: int) -> list[Message]:
    """Chains of `per_event` blocks are stored; once `keep` blocks are held, the oldest leave one event a block."""
    messages: list[Message] = []
    held: list[list[int]] = []
    done = 0
    while done < changes:
        hashes = keys(rng, per_event)
        stored = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": [rng.randrange(150_000) for _ in range(per_event * BLOCK)],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * per_event,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        events: list[dict[str, Any]] = [stored]
        held.append(hashes)
        done += per_event
        if len(held) * per_event > keep:
            events += [
                {"type": "BlockRemoved", "block_hashes": [hash_], "medium": "GPU", "group_idx": 0}
                for hash_ in held.pop(0)
            ]
            done += per_event
        messages.append(encode(len(messages), events))
    return messages


def ingestion(rng: random.Random, per_event: int) -> Iterator[Row]:
    changes = 40_000
    messages = event_stream(rng, per_event, changes, keep=changes // 4)
    rounds = []
    for _ in range(3):
        index, ingest = MemoryIndex(time.monotonic), Ingest("model", BLOCK)
        ingest.start()
        ingest.replay_ended()
        gc.collect()
        start = time.process_time()
        for message in messages:
            apply_operations(ingest.live(message), index, "engine")
        rounds.append(time.process_time() - start)
    yield Row(f"event bytes -> index, {per_event} blocks an event", f"{changes / min(rounds):,.0f} changes/s")


def memory(rng: random.Random, blocks: int) -> Iterator[Row]:
    """Growth of the resident set while blocks arrive as events: index, and then the engine's hashes beside it."""
    per = 64
    keysets = [keys(rng, per) for _ in range(blocks // per)]
    before = resident_bytes()
    index = MemoryIndex(time.monotonic, default_blocks=2 * blocks)
    for keyset in keysets:
        index.store("engine", list(array("Q", keyset)), Tier.DEVICE)
    held = index.stats().keys
    yield Row(f"memory of the index, {held:,} blocks", f"{(resident_bytes() - before) / held:.0f} bytes a block")
    del index, keysets
    gc.collect()
    messages = event_stream(rng, per, blocks, keep=2 * blocks)
    before = resident_bytes()
    index, ingest = MemoryIndex(time.monotonic, default_blocks=2 * blocks), Ingest("model", BLOCK)
    ingest.start()
    ingest.replay_ended()
    for message in messages:
        apply_operations(ingest.live(message), index, "engine")
    held = index.stats().keys
    yield Row("the same with engine hashes", f"{(resident_bytes() - before) / held:.0f} bytes a block")


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as pages:  # noqa: PTH123 - not a file to have a Path for
            return int(pages.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m loadtest.bench.kvindex_bench", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--blocks", type=whole(1), default=200_000, help="blocks held while lookups are timed")
    options = parser.parse_args(arguments)
    rng = random.Random(1)
    parts: list[Callable[[], Iterator[Row]]] = [
        lambda: memory(rng, 100_000),
        lambda: hashing(rng),
        lambda: lookups(rng, 8, options.blocks),
        lambda: lookups(rng, 64, options.blocks),
        lambda: ingestion(rng, 1),
        lambda: ingestion(rng, 4),
        lambda: ingestion(rng, 64),
        lambda: ingestion(rng, 512),
    ]
    write = sys.stdout.write
    for done, part in enumerate(parts):
        for row in part():
            write(f"[{done + 1}/{len(parts)}] {row.what:<56} {row.value:>22}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
