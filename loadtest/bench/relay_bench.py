"""What the relay costs beside httpx: CPU of the client process per request, per paced chunk and per burst chunk.

    python -m loadtest.bench.relay_bench

A bare engine runs in a process of its own and answers with bytes prepared beforehand, so that only the client is
measured. CPU time holds on a busy machine where wall time does not; read the ratios of one run, not the figures.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from router.core import Api, Endpoint
from router.upstream.relay import Relay
from router.upstream.transport import RelayTransport
from router.wire.sse import StreamScanner

_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"
_JSON = b'{"id":"cmpl-1","choices":[{"index":0,"text":"hello","finish_reason":"stop"}],"usage":{"prompt_tokens":5}}'
_SMALL = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_JSON), _JSON)
_BODY = b'{"model":"m","prompt":"' + b"x" * 400 + b'"}'
_HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"0123456789abcdef"), (b"user-agent", b"bench")]

_PACED_CHUNKS, _PACE_S, _PACED_STREAMS = 50, 0.02, 32
_BURST_CHUNKS, _BURST_STREAMS = 2000, 4
_SMALL_REQUESTS, _SMALL_AT_ONCE = 1500, 16
_ROUNDS = 3


class Engine(asyncio.Protocol):
    """Answers by path: ``/small``, ``/paced`` and ``/burst``."""

    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(b'"}'):
            return
        path, self._buffer = self._buffer.split(b" ", 2)[1], b""
        if path == b"/small":
            self._transport.write(_SMALL)
        elif path == b"/burst":
            self._transport.write(_STREAM_HEAD + _CHUNK * _BURST_CHUNKS + _LAST)
        else:
            self._transport.write(_STREAM_HEAD)
            self._pace(_PACED_CHUNKS)

    def _pace(self, left: int) -> None:
        if not left:
            self._transport.write(_LAST)
        elif not self._transport.is_closing():
            self._transport.write(_CHUNK)
            asyncio.get_running_loop().call_later(_PACE_S, self._pace, left - 1)


async def serve_engine() -> None:
    """Runs until its standard input closes, which it does with the process that started it."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


class Client(Protocol):
    async def body_length(self, path: str) -> int:
        """Posts to the engine and reads the answer piece by piece."""
        ...

    async def aclose(self) -> None: ...


class RelayClient:
    def __init__(self, url: str, *, scanning: bool = False) -> None:
        self._endpoint = Endpoint(id="engine", url=url)
        self._relay = Relay()
        self._scanning = scanning

    async def body_length(self, path: str) -> int:
        response = await self._relay.open(self._endpoint, b"POST", path, _HEADERS, _BODY)
        feed = StreamScanner(Api.CHAT).feed if self._scanning else len
        length = 0
        try:
            while data := await response.read():
                feed(data)
                length += len(data)
        finally:
            await response.close()
        return length

    async def aclose(self) -> None:
        await self._relay.aclose()


class HttpxClient:
    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._url = url
        self._client = httpx.AsyncClient(transport=transport, limits=limits, timeout=60, trust_env=False)

    async def body_length(self, path: str) -> int:
        length = 0
        async with self._client.stream("POST", self._url + path, content=_BODY, headers=_HEADERS) as response:
            async for data in response.aiter_raw():
                length += len(data)
        return length

    async def aclose(self) -> None:
        await self._client.aclose()


class Cost(NamedTuple):
    """CPU microseconds of the client process."""

    request: float
    paced_chunk: float
    burst_chunk: float


async def _cpu_us(work: Callable[[], Awaitable[int]], items: int) -> float:
    before = time.process_time()
    done = await work()
    if done != items:
        raise RuntimeError(f"{done} of {items} came through")
    return (time.process_time() - before) / items * 1e6


async def _small(client: Client) -> int:
    async def some() -> int:
        return sum([await client.body_length("/small") for _ in range(_SMALL_REQUESTS // _SMALL_AT_ONCE)])

    return sum(await asyncio.gather(*(some() for _ in range(_SMALL_AT_ONCE)))) // len(_JSON)


async def _streams(client: Client, path: str, count: int) -> int:
    return sum(await asyncio.gather(*(client.body_length(path) for _ in range(count)))) // len(_EVENT)


async def measure(client: Client) -> Cost:
    await _small(client)
    small = _SMALL_REQUESTS // _SMALL_AT_ONCE * _SMALL_AT_ONCE
    return Cost(
        await _cpu_us(lambda: _small(client), small),
        await _cpu_us(lambda: _streams(client, "/paced", _PACED_STREAMS), _PACED_CHUNKS * _PACED_STREAMS),
        await _cpu_us(lambda: _streams(client, "/burst", _BURST_STREAMS), _BURST_CHUNKS * _BURST_STREAMS),
    )


@asynccontextmanager
async def _engine() -> AsyncIterator[str]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "loadtest.bench.relay_bench", "--engine")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()


async def compare(console: Console) -> dict[str, Cost]:
    """Client -> median cost. Rounds alternate between clients, so that a busy moment hits them all."""
    costs: dict[str, list[Cost]] = {}
    async with _engine() as url:
        clients: dict[str, Client] = {
            "relay": RelayClient(url),
            "relay + scanner": RelayClient(url, scanning=True),
            "httpx over the relay": HttpxClient(url, RelayTransport(Relay())),
            "httpx": HttpxClient(url),
        }
        try:
            for number in range(_ROUNDS):
                for name, client in clients.items():
                    console.print(f"round {number + 1} of {_ROUNDS}: {name}", style="dim")
                    costs.setdefault(name, []).append(await measure(client))
        finally:
            for client in clients.values():
                await client.aclose()
    return {name: Cost(*map(statistics.median, zip(*rounds, strict=True))) for name, rounds in costs.items()}


def table(costs: dict[str, Cost]) -> Table:
    base = costs["relay"]
    shown = Table(title="CPU of the client process, microseconds (times the relay)")
    for column in ("client", "small request", "paced chunk", "burst chunk"):
        shown.add_column(column, justify="left" if column == "client" else "right")
    for name, cost in costs.items():
        shown.add_row(name, *(f"{own:.1f} ({own / its:.1f}x)" for own, its in zip(cost, base, strict=True)))
    return shown


def main() -> None:
    if "--engine" in sys.argv:
        uvloop.run(serve_engine())
        return
    console = Console()
    console.print(table(uvloop.run(compare(console))))


if __name__ == "__main__":
    main()
