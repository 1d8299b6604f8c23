"""The real router in front of real engines, in this process, so that a test can see what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import httpx
import zmq

from kvindex.events import END_OF_REPLAY, BlockRemoved, decode_events, decode_frames
from router.core import Health
from tests.real_vllm.engines import Engine
from tests.support.router import RunningRouter, running_router

WAIT_S = 60.0
"""What takes milliseconds takes seconds on two shared cores."""


@asynccontextmanager
async def router_over(
    engines: Sequence[Engine] = (),
    *,
    prefill: Sequence[Engine] = (),
    decode: Sequence[Engine] = (),
    more: Sequence[dict[str, Any]] = (),
    **flags: Any,
) -> AsyncIterator[RunningRouter]:
    """`flags`: dotted settings with ``__`` for the dot. The tokenizer is found where the engine says it is."""
    roles = (("both", engines), ("prefill", prefill), ("decode", decode))
    specs: list[dict[str, Any]] = [{"url": engine.url, "role": role} for role, group in roles for engine in group]
    # A probe of an engine that shares its core with two others is slow, not failed.
    patient: dict[str, Any] = {"tokenization__default": None, "pool__probe_timeout_s": 20.0}
    async with running_router([*specs, *more], **(patient | flags)) as router:
        yield router


@asynccontextmanager
async def client_of(router: RunningRouter) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=router.url, timeout=180, trust_env=False) as client:
        yield client


async def eventually(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:.0f} s: {what}") from None


async def reports(engine: Engine, metric: str, value: float, within_s: float = WAIT_S) -> None:
    """Returns when the engine's metric has this value. Asks from a thread: the router shares this loop."""
    seen: float | None = None
    try:
        async with asyncio.timeout(within_s):
            while (seen := await asyncio.to_thread(engine.metric, metric)) != value:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{metric} of {engine.spec.name} is {seen}, not {value}, after {within_s:.0f} s") from None


async def exact(router: RunningRouter, ranks: int | None = None) -> None:
    """Returns when the router follows every endpoint's KV events (or `ranks` of them) without a hole."""
    wanted = ranks if ranks is not None else len(router.app.pool.snapshot())

    def followed() -> bool:
        following = router.app.indexing.following()
        return len(following) >= wanted and all(one.exact for one in following.values())

    await eventually(followed, "all KV events followed exactly")


async def healthy(router: RunningRouter) -> None:
    await eventually(lambda: all(one.health is Health.HEALTHY for one in router.app.pool.snapshot()), "all are healthy")


class Record:
    """What one engine has published, as its replay socket tells; nothing is heard late or missed.

    An engine looks at its replay socket before it takes the next events from its queue. So when two questions in a row
    bring nothing new, there was nothing in the queue between them.
    """

    def __init__(self, replay_url: str) -> None:
        self.next_sequence = 0
        self.evicted = 0
        """Blocks, since the engine's first event."""
        self._context: zmq.Context[zmq.SyncSocket] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, round(WAIT_S * 1000))
        self._socket.connect(replay_url)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    async def read(self) -> None:
        """Returns when it has read all that the engine had to say at some moment after the call."""
        silent = 0
        while silent < 2:
            silent = 0 if await asyncio.to_thread(self._read_on) else silent + 1

    def _read_on(self) -> bool:
        """Whether there was anything new."""
        asked = self.next_sequence
        self._socket.send_multipart([b"", asked.to_bytes(8, "big")])
        while (message := decode_frames(self._socket.recv_multipart()[1:])).sequence != END_OF_REPLAY:
            self.next_sequence = message.sequence + 1
            removals = (event for event in decode_events(message.payload).events if isinstance(event, BlockRemoved))
            self.evicted += sum(len(event.block_hashes) for event in removals)
        return self.next_sequence > asked


@asynccontextmanager
async def records_of(router: RunningRouter) -> AsyncIterator[dict[str, Record]]:
    """Endpoint id -> its engine's record."""
    subscribers = {name: one.subscriber for name, one in router.app.indexing.following().items()}
    records = {
        name: Record(subscriber.source.replay_url)
        for name, subscriber in subscribers.items()
        if subscriber is not None and subscriber.source.replay_url is not None
    }
    assert len(records) == len(subscribers), "not every engine replays its events"
    try:
        yield records
    finally:
        for record in records.values():
            record.close()


async def all_heard(router: RunningRouter, records: dict[str, Record]) -> None:
    """Returns when the router knows all that the engines have published; they must have nothing to do."""
    await asyncio.gather(*(record.read() for record in records.values()))
    following = router.app.indexing.following()

    def heard(name: str, record: Record) -> bool:
        subscriber = following[name].subscriber
        return subscriber is not None and (subscriber.ingest.next_sequence or 0) >= record.next_sequence

    await eventually(lambda: all(heard(name, record) for name, record in records.items()), "all events heard")


class EventProxy:
    """A TCP proxy to one of an engine's event sockets, to cut and to mend."""

    def __init__(self, port: int) -> None:
        self._engine_port = port
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Refuses, and ends what is connected."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in self._open:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._engine_port)
        except OSError:
            writer.close()
            return
        self._open |= {writer, back}
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(_copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()
