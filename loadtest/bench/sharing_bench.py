"""What sharing the KV index costs: ``python -m loadtest.bench.sharing_bench`` prints a table in about half a minute.

Needs a server: the embedded Valkey (``kvrouter[embedded]``), or ``--redis URL``. Changes are event bytes on one side
and stored in the server on the other. CPU is this process's; the server works beside it, so on a busy machine compare
ratios, never absolutes.
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvindex import MemoryIndex, Mode
from kvindex.events import Message
from kvindex.ingest import Ingest
from kvindex.operations import apply_operations
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from loadtest.arguments import Parser, complain, redis_url
from loadtest.bench.kvindex_bench import BLOCK, Row, event_stream
from router.errors import ConfigError
from router.workers.embedded import EmbeddedValkey

ENDPOINTS = 8
BLOCKS = 200_000
CHANGES = 200_000
PER_EVENT = 16
PACES = ((16, 50_000), (16, 100_000), (64, 100_000))
"""Blocks stored by an event, and changes a second, while the loop's lag is measured."""


class Router:
    def __init__(self, url: str, namespace: str) -> None:
        self.index = RedisIndex(
            MemoryIndex(time.monotonic, default_blocks=4 * BLOCKS),
            lambda: RedisStore(RedisLink(url, budget_s=5.0), namespace=namespace),
            router=secrets.token_hex(4),
        )
        self.ingests: dict[str, Ingest] = {}

    async def join(self, *, restore: bool) -> None:
        await self.index.start()
        for number in range(ENDPOINTS):
            name = f"engine{number}"
            ingest = self.ingests[name] = Ingest("model", BLOCK)
            self.index.attach(name, ingest)
            if restore:
                await self.index.restore(name)
            else:
                ingest.start()
                ingest.replay_ended()
            self.index.set_mode(name, Mode.EXACT)


@asynccontextmanager
async def router(url: str, namespace: str, *, restore: bool = False) -> AsyncIterator[Router]:
    made = Router(url, namespace)
    await made.join(restore=restore)
    try:
        yield made
    finally:
        await made.index.aclose()


async def figures(url: str) -> list[Row]:
    rng = random.Random(1)
    namespace = f"bench{secrets.token_hex(4)}"
    rows = []
    async with router(url, namespace) as owner:
        filling = [event_stream(rng, 64, BLOCKS // ENDPOINTS, keep=BLOCKS) for _ in range(ENDPOINTS)]
        for (name, ingest), messages in zip(owner.ingests.items(), filling, strict=True):
            for message in messages:
                apply_operations(ingest.live(message), owner.index, name)
        began = time.monotonic()
        await owner.index.synchronized(120)
        held = owner.index.stats().keys
        rows.append(Row(f"first write of {held:,} blocks of {ENDPOINTS} endpoints", _seconds(began)))

        gc.collect()
        began = time.monotonic()
        async with router(url, namespace, restore=True) as late:
            rows.append(Row(f"a router joins: {late.index.stats().keys:,} blocks known after", _seconds(began)))

        rows.append(Row("changes through the server, bytes to stored", await through(rng, owner)))
        for number, (per_event, pace) in enumerate(PACES, 1):
            what = f"loop lag p99 at {pace:,} changes/s, {per_event} blocks an event, shared"
            rows.append(Row(what, await lag(rng, owner, number, per_event, pace)))
    return rows


async def through(rng: random.Random, owner: Router) -> str:
    name, ingest = next(iter(owner.ingests.items()))
    sequence = ingest.next_sequence or 0
    messages = shifted(event_stream(rng, PER_EVENT, CHANGES, keep=CHANGES // 4), sequence)
    began, cpu = time.monotonic(), time.process_time()
    for number, message in enumerate(messages):
        apply_operations(ingest.live(message), owner.index, name)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await owner.index.synchronized(120)
    seconds, spent = time.monotonic() - began, time.process_time() - cpu
    return f"{CHANGES / seconds:,.0f}/s ({CHANGES / spent:,.0f} a second of this process's CPU)"


async def lag(rng: random.Random, owner: Router, number: int, per_event: int, pace: int) -> str:
    """The lateness of a timer every 5 ms while changes are applied in slices of 2 ms, as subscribers apply them."""
    name, ingest = list(owner.ingests.items())[number]
    seconds = 3
    stream = event_stream(rng, per_event, pace * seconds, keep=pace // 4)
    messages = iter(shifted(stream, ingest.next_sequence or 0))
    per_message = pace * seconds / len(stream)
    lates: list[float] = []
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            due = time.monotonic() + 0.005
            await asyncio.sleep(0.005)
            lates.append(max(0.0, time.monotonic() - due))

    watching = asyncio.create_task(watch())
    began, done = time.monotonic(), 0.0
    turn = began
    for message in messages:
        apply_operations(ingest.live(message), owner.index, name)
        done += per_message
        now = time.monotonic()
        ahead = done / pace - (now - began)
        if ahead > 0.002 or now - turn > 0.002:
            await asyncio.sleep(max(ahead, 0.0))
            turn = time.monotonic()
    reached = done / (time.monotonic() - began)
    over.set()
    await watching
    return f"{1000 * sorted(lates)[int(0.99 * len(lates))]:.1f} ms (reached {reached:,.0f}/s)"


def shifted(messages: list[Message], first: int) -> list[Message]:
    """The same messages, continuing a stream."""
    return [Message(each.topic, each.sequence + first, each.payload) for each in messages]


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.2f} s"


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Raises ConfigError without a server to start."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="kvrouter-") as folder:
        embedded = EmbeddedValkey(Path(folder))
        embedded.start()
        try:
            yield embedded.url
        finally:
            embedded.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.bench.sharing_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--redis", type=redis_url, metavar="URL")
    options = parser.parse_args(arguments)
    try:
        with server(options.redis) as url:
            rows = asyncio.run(figures(url))
    except ConfigError as error:
        return complain(error)
    table = Table(title="Sharing the KV index")
    table.add_column("what")
    table.add_column("value", justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
