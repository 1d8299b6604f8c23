"""What a whole request costs the router: CPU of its process, doing all its work, per request and per chunk.

    python -m loadtest.bench.serving_bench

Bare engines in a process of their own answer with bytes prepared beforehand; the router runs as `kvrouter serve` does,
with the project's own tokenizer, index, decision and metrics, the access line off. CPU time holds on a busy machine
where wall time does not; compare figures of one run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.cluster import start_child, wait_for
from loadtest.ports import free_ports
from loadtest.simulator import TOKENIZER_PATH
from router.core import Endpoint
from router.upstream.relay import Relay

_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"
_CHUNKS = 100
_PACE_S = 0.02
_ENGINES = 4
_ANSWER = (
    b'{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3}}'
)
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model","root":"m"}]}'
_METRICS = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0\n'
    b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10000"} 1.0\n'
)
_CONTROL = {b"/v1/models": _MODELS, b"/metrics": _METRICS, b"/health": b"{}", b"/version": b'{"version":"1"}'}


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


class BareEngine(asyncio.Protocol):
    """As little of vLLM as the router needs to be satisfied."""

    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length: ")
            length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1], head, body)

    def _answer(self, path: bytes, head: bytes, body: bytes) -> None:
        if not path.startswith(b"/v1/chat"):
            known = _CONTROL.get(path)
            self._transport.write(_whole(b"{}", b"404 Not Found") if known is None else _whole(known))
        elif b'"stream": true' not in body:
            self._transport.write(_whole(_ANSWER))
        elif b"x-bench: burst" in head:
            self._transport.write(_STREAM_HEAD + _CHUNK * _CHUNKS + _LAST)
        else:
            self._transport.write(_STREAM_HEAD)
            self._pace(_CHUNKS)

    def _pace(self, left: int) -> None:
        if not left:
            self._transport.write(_LAST)
        elif not self._transport.is_closing():
            self._transport.write(_CHUNK)
            asyncio.get_running_loop().call_later(_PACE_S, self._pace, left - 1)


async def serve_engines(first_port: int) -> None:
    """Until ended."""
    loop = asyncio.get_running_loop()
    for port in range(first_port, first_port + _ENGINES):
        await loop.create_server(BareEngine, "127.0.0.1", port)
    await asyncio.Event().wait()


class Load(NamedTuple):
    name: str
    requests: int
    at_once: int
    words: int
    """Of the prompt."""
    stream: bool = False
    burst: bool = False

    def body(self) -> bytes:
        messages = [{"role": "user", "content": "hello there, my old friend " * (self.words // 5 + 1)}]
        return json.dumps({"model": "m", "messages": messages, "stream": self.stream}).encode()


LOADS = (
    Load("small chat", 4000, 32, 5),
    Load("32 KiB chat", 600, 8, 6000),
    Load("128 KiB chat", 200, 4, 24000),
    Load("paced stream of 100 chunks", 300, 100, 5, stream=True),
    Load("burst stream of 100 chunks", 800, 32, 5, stream=True, burst=True),
)


class Cost(NamedTuple):
    load: Load
    cpu_us: float
    """A request."""
    wall_s: float


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its threads, from ``/proc``."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(load: Load, url: str, pid: int) -> Cost:
    relay = Relay()
    target = Endpoint(id="router", url=url)
    headers = [(b"content-type", b"application/json"), *([(b"x-bench", b"burst")] if load.burst else [])]
    body = load.body()
    left = iter(range(load.requests))

    async def some() -> None:
        for _ in left:
            response = await relay.open(target, b"POST", "/v1/chat/completions", headers, body)
            if response.status != 200:
                raise RuntimeError(f"the router answered {response.status}")
            while await response.read():
                pass
            await response.close()

    loop = asyncio.get_running_loop()
    started, before = loop.time(), cpu_seconds(pid)
    async with asyncio.TaskGroup() as group:
        for _ in range(load.at_once):
            group.create_task(some())
    cost = Cost(load, (cpu_seconds(pid) - before) / load.requests * 1e6, loop.time() - started)
    await relay.aclose()
    return cost


@asynccontextmanager
async def _router() -> AsyncIterator[tuple[str, int]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-bench-")))
        port = free_ports(_ENGINES + 1)
        urls = [f"http://127.0.0.1:{port + number}" for number in range(_ENGINES)]
        url = f"http://127.0.0.1:{port + _ENGINES}"
        config = folder / "router.yaml"
        config.write_text(f"server: {{access_log: false}}\ntokenization: {{default: '{TOKENIZER_PATH}'}}\n")
        engines = start_child(stack, "engines", ["loadtest.bench.serving_bench", "--engines", str(port)], folder)
        await asyncio.to_thread(wait_for, engines, [f"{engine}/health" for engine in urls])
        serve = ["router", "serve", *urls, "--config", str(config), "--port", str(port + _ENGINES)]
        router = start_child(stack, "router", [*serve, "--log-level", "warning"], folder)
        await asyncio.to_thread(wait_for, router, [f"{url}/ready"])
        yield url, router.pid


async def measure(console: Console) -> list[Cost]:
    async with _router() as (url, pid):
        await run(LOADS[0]._replace(requests=200), url, pid)
        costs = []
        for number, load in enumerate(LOADS):
            console.print(f"load {number + 1} of {len(LOADS)}: {load.name}", style="dim")
            costs.append(await run(load, url, pid))
        return costs


def table(costs: list[Cost]) -> Table:
    shown = Table(title="CPU of the router process, microseconds")
    for column in ("load", "a request", "a chunk", "requests/s of wall time"):
        shown.add_column(column, justify="left" if column == "load" else "right")
    whole = costs[0].cpu_us
    for load, cpu_us, wall_s in costs:
        chunk = f"{max(cpu_us - whole, 0) / _CHUNKS:.1f}" if load.stream else ""
        shown.add_row(load.name, f"{cpu_us:.0f}", chunk, f"{load.requests / wall_s:.0f}")
    return shown


def main() -> None:
    if "--engines" in sys.argv:
        uvloop.run(serve_engines(int(sys.argv[-1])))
        return
    console = Console()
    console.print(table(uvloop.run(measure(console))))


if __name__ == "__main__":
    main()
