"""`kvrouter serve` and `check` as processes: configuration reloaded while running, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.demo.children import plain_environment
from loadtest.simulator import TOKENIZER_PATH
from tests.support.simulator import engines

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""Far more than anything here takes; a test that reaches it fails."""
pytestmark = pytest.mark.timeout(180)


class Served:
    """A running ``kvrouter serve --config`` and what it has logged."""

    def __init__(self, config: Path, client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
        self.config = config
        self.client = client
        self.process = process
        self.log = ""

    def write(self, urls: list[str], **more: Any) -> None:
        self.config.write_text(json.dumps(self.settings | {"endpoints": urls} | more), encoding="utf-8")

    @property
    def settings(self) -> dict[str, Any]:
        port = self.client.base_url.port
        return {"server": {"port": port}, "tokenization": {"default": str(TOKENIZER_PATH)}}

    async def urls(self) -> list[str]:
        answer = await self.client.get("/debug/endpoints")
        return [endpoint["url"] for endpoint in answer.json()["endpoints"]]

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(config: Path, urls: list[str]) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
        first = {"server": {"port": port}, "tokenization": {"default": str(TOKENIZER_PATH)}, "endpoints": urls}
        config.write_text(json.dumps(first), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "serve", "--config", str(config)),
            cwd=ROOT,
            env=plain_environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        served = Served(config, client, process)
        following = asyncio.create_task(served.follow())

        async def ready() -> bool:
            assert process.returncode is None, served.log
            try:
                return (await client.get("/ready")).status_code == 200
            except httpx.TransportError:
                return False

        try:
            await until(ready)
            yield served
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await following


async def test_endpoints_change_with_the_file_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    async with engines(2) as (one, two), serving(tmp_path / "kv.yaml", [one.url]) as served:
        served.write([two.url])

        async def moved() -> bool:
            return await served.urls() == [two.url]

        await until(moved)

        served.write([one.url], wibble=1)

        async def refused() -> bool:
            return "the old one stays in force: wibble" in served.log

        await until(refused)
        assert await served.urls() == [two.url]

        served.write([two.url], server=served.settings["server"] | {"keepalive_s": 50})
        served.process.send_signal(signal.SIGHUP)

        async def named() -> bool:
            return "needs a restart to take effect: server.keepalive_s" in served.log

        await until(named)
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await served.process.wait() == 0
    assert "Traceback" not in served.log


async def test_flow_control_changes_on_reload_and_what_waits_goes_on_waiting(tmp_path: Path) -> None:
    async with engines(1, profile="demo") as (engine,), serving(tmp_path / "kv.yaml", [engine.url]) as served:

        async def reloaded(**flow: Any) -> None:
            served.write([engine.url], flow_control=flow)
            answer = await served.client.post("/admin/reload")
            assert (answer.status_code, answer.json()["needs_restart"]) == (200, [])

        async def waiting(count: int) -> None:
            async def seen() -> bool:
                requests: int = (await served.client.get("/debug/flow")).json()["requests"]
                return requests == count

            await until(seen)

        def ask(tokens: int) -> asyncio.Task[httpx.Response]:
            body = {"model": "sim-model", "prompt": "count", "max_tokens": tokens, "ignore_eos": True}
            return asyncio.create_task(served.client.post("/v1/completions", json=body, timeout=SECONDS))

        await reloaded(max_requests_per_endpoint=1)
        long = ask(4000)
        await until(lambda: _inflight(served, 1))
        tasks = [ask(2) for _ in range(5)]
        await waiting(5)
        await reloaded(max_requests_per_endpoint=1, max_requests=2, class_max_requests=2)
        await waiting(5)
        assert (await ask(2)).status_code == 429
        await reloaded(max_requests_per_endpoint=100, max_requests=2, class_max_requests=2)
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 5
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)


async def test_limits_of_clients_change_on_reload_and_so_does_the_log(tmp_path: Path) -> None:
    async with engines(1, profile="demo") as (engine,), serving(tmp_path / "kv.yaml", [engine.url]) as served:
        body = {"model": "sim-model", "prompt": "x" * 2000, "max_tokens": 1}

        async def asked(**headers: str) -> int:
            async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False, timeout=SECONDS) as fresh:
                return (await fresh.post("/v1/completions", json=body, headers=headers)).status_code

        assert await asked(filler="y" * 3000) == 200
        limits = {"max_body_bytes": 1000, "max_header_bytes": 2000, "shutdown_grace_s": 0.5}
        served.write([engine.url], server=served.settings["server"] | limits, log={"format": "json"})
        # By this call or by the watch of the file, whichever comes first.
        assert (await served.client.post("/admin/reload")).json()["needs_restart"] == []
        names = "server.max_body_bytes, server.max_header_bytes, server.shutdown_grace_s, log.format"

        async def taken_over() -> bool:
            return f"configuration reloaded: {names}" in served.log

        await until(taken_over)
        assert await asked() == 413
        assert await asked(filler="y" * 3000) == 431
        served.write([engine.url], log={"format": "json"})
        await served.client.post("/admin/reload")
        assert await asked(filler="y" * 3000) == 200

        async def said() -> bool:
            return '"logger":"router.reload","message":"configuration reloaded: server.' in served.log

        await until(said)
    assert "Traceback" not in served.log


async def _inflight(served: Served, count: int) -> bool:
    entries = (await served.client.get("/admin/endpoints")).json()["endpoints"]
    requests: int = sum(entry["inflight"]["requests"] for entry in entries)
    return requests == count


async def test_a_running_stream_ends_whole_before_the_process_does(tmp_path: Path) -> None:
    async with engines(1, profile="demo") as (engine,), serving(tmp_path / "kv.yaml", [engine.url]) as served:
        body = {"model": "sim-model", "prompt": "count", "max_tokens": 40, "stream": True, "ignore_eos": True}
        async with served.client.stream("POST", "/v1/completions", json=body) as answer:
            pieces = answer.aiter_bytes()
            got = await anext(pieces)
            served.process.send_signal(signal.SIGTERM)
            async for piece in pieces:
                got += piece
        assert got.rstrip().endswith(b"data: [DONE]")
        async with asyncio.timeout(SECONDS):
            assert await served.process.wait() == 0


async def test_check_is_content_with_a_simulated_engine() -> None:
    async with engines(1) as (engine,):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "check", engine.url, "--tokenizer", str(TOKENIZER_PATH)),
            cwd=ROOT,
            env=plain_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(SECONDS):
            shown, _ = await process.communicate()
    assert process.returncode == 0, shown.decode()
    assert b"equal (" in shown
    assert b"1 with replay" in shown
