"""`kvrouter serve --workers`: several routers on one host that look like one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.demo.children import plain_environment
from loadtest.simulator import TOKENIZER_PATH
from tests.support.simulator import engines

ROOT = Path(__file__).parents[2]
SECONDS = 100.0
"""Far more than anything here takes; a test that reaches it fails."""
pytestmark = pytest.mark.timeout(300)


class Served:
    def __init__(self, config: Path, port: int, process: asyncio.subprocess.Process) -> None:
        self.config = config
        self.port = port
        self.process = process
        self.log = ""

    def fresh(self) -> httpx.AsyncClient:
        """A client without a connection yet: any worker may take it."""
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", verify=False, trust_env=False, timeout=30)

    async def get(self, path: str) -> httpx.Response:
        async with self.fresh() as client:
            return await client.get(path)

    async def post(self, path: str) -> httpx.Response:
        async with self.fresh() as client:
            return await client.post(path)

    async def chat(self, text: str) -> httpx.Response:
        body = {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        async with self.fresh() as client:
            return await client.post("/v1/chat/completions", json=body)

    async def metric(self, name: str) -> float:
        """The sum of all series that begin so."""
        page = (await self.get("/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))

    def workers(self) -> list[int]:
        """Process ids of the workers, without the embedded server's leash."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [
            pid for pid in map(int, children) if b"router.workers.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()


def descendants(pid: int) -> list[int]:
    """All processes that come from one."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.1)


@asynccontextmanager
async def serving(
    folder: Path, urls: list[str], *flags: str, environment: Mapping[str, str] | None = None, **server: Any
) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = folder / "kv.yaml"
    settings = {"server": {"port": port, **server}, "tokenization": {"default": str(TOKENIZER_PATH)}, "endpoints": urls}
    config.write_text(json.dumps(settings), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "serve", "--config", str(config), *flags),
        cwd=ROOT,
        env={**plain_environment(), **(environment or {})},
        stderr=asyncio.subprocess.PIPE,
    )
    served = Served(config, port, process)
    following = asyncio.create_task(served.follow())

    async def all_ready() -> bool:
        assert process.returncode is None, served.log
        # Where they took long to start, the parent has answered 503 in their place until it heard of one that serves.
        stood_in = served.log.count("requests are answered 503 until one does")
        taken_over = len(re.findall(r"router\.workers\.parent: worker \d+ serves", served.log))
        started = served.log.count("router.serving: serving on")
        return started >= int(flags[flags.index("--workers") + 1]) and stood_in == taken_over

    try:
        await until(all_ready)
        yield served
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await following


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")
async def test_workers_share_one_listener_one_index_and_one_face(tmp_path: Path) -> None:
    async with engines(2) as (one, two), serving(tmp_path, [one.url, two.url], "--workers", "2") as served:
        assert "2 workers share an embedded Valkey" in served.log
        assert len(served.workers()) == 2
        ready = await served.get("/ready")
        assert (ready.status_code, ready.json()["workers"]) == (200, {"running": 2, "of": 2})

        # One index: wherever the conversation came first, every worker knows.
        text = "the same beginning for everybody " * 20
        first = (await served.chat(text)).headers["x-kvrouter-endpoint"]
        await asyncio.sleep(1.0)
        answers = [await served.chat(text) for _ in range(20)]
        assert {answer.headers["x-kvrouter-endpoint"] for answer in answers} == {first}
        assert all(int(answer.headers["x-kvrouter-matched-tokens"]) > 0 for answer in answers)

        # One page: all requests are counted whoever served them and whoever is asked.
        for _ in range(5):
            assert await served.metric("kvrouter_requests_total") == 21

        # An administrator's order holds in all workers whoever took it, and in those that start later.
        assert (await served.post(f"/admin/endpoints/{first}/drain")).status_code == 200
        answers = [await served.chat(text) for _ in range(10)]
        assert first not in {answer.headers["x-kvrouter-endpoint"] for answer in answers}

        async def all_counted() -> bool:
            # A worker that is slow to answer for its page is left out of a scrape.
            return await served.metric("kvrouter_requests_total") == 31

        await until(all_counted)

        # A worker that is killed is started again, and what it counted stays.
        killed = served.workers()[0]
        os.kill(killed, signal.SIGKILL)
        statuses = [(await served.chat(f"during {number}")).status_code for number in range(10)]
        assert set(statuses) == {200}

        async def again() -> bool:
            return served.log.count("router.serving: serving on") >= 3 and len(served.workers()) == 2

        await until(again)
        assert killed not in served.workers()
        assert await served.metric("kvrouter_requests_total") == 41
        answers = [await served.chat(text) for _ in range(10)]
        assert first not in {answer.headers["x-kvrouter-endpoint"] for answer in answers}
        assert (await served.post(f"/admin/endpoints/{first}/resume")).json()["drained"] == []
        assert (await served.post("/admin/drain")).status_code == 200
        assert {(await served.get("/ready")).status_code for _ in range(6)} == {503}
        assert (await served.post("/admin/resume")).status_code == 200
        assert {(await served.get("/ready")).status_code for _ in range(6)} == {200}

        # A reload reaches all.
        settings = json.loads(served.config.read_text())
        settings["server"]["api_keys"] = ["k3y"]
        served.config.write_text(json.dumps(settings), encoding="utf-8")
        served.process.send_signal(signal.SIGHUP)

        async def refused_by_all() -> bool:
            return {(await served.chat("who are you")).status_code for _ in range(12)} == {401}

        await until(refused_by_all)

        started = descendants(served.process.pid)
        assert any((Path(f"/proc/{pid}/cwd") / "valkey.sock").exists() for pid in started)
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await served.process.wait() == 0
    assert "Traceback" not in served.log
    assert not [pid for pid in started if (Path(f"/proc/{pid}/cwd") / "valkey.sock").exists()]


@pytest.mark.parametrize("way", ["file", "call"])
async def test_mwk_02_a_change_reaches_every_worker(way: str, tmp_path: Path) -> None:
    async with engines(2) as (one, two), serving(tmp_path, [one.url], "--workers", "4") as served:

        async def served_by(count: int) -> set[str]:
            return set(await asyncio.gather(*(one_of_them(number) for number in range(count))))

        async def one_of_them(number: int) -> str:
            # An engine that is new to a worker may be too busy for its first probe.
            while (answer := await served.chat(f"number {number}")).status_code == 503:
                await asyncio.sleep(0.2)
            assert answer.status_code == 200
            return str(answer.headers["x-kvrouter-endpoint"])

        assert await served_by(20) == {one.url.removeprefix("http://")}
        settings = json.loads(served.config.read_text()) | {"endpoints": [two.url]}
        served.config.write_text(json.dumps(settings), encoding="utf-8")
        if way == "call":
            assert (await served.post("/admin/reload")).status_code == 200

        async def taken_over() -> bool:
            return served.log.count("configuration reloaded: endpoints") == 4

        await until(taken_over)
        assert await served_by(100) == {two.url.removeprefix("http://")}
    assert "Traceback" not in served.log


async def test_a_running_stream_ends_whole_before_the_workers_do(tmp_path: Path) -> None:
    async with engines(1, profile="demo") as (engine,), serving(tmp_path, [engine.url], "--workers", "2") as served:
        body = {"model": "sim-model", "prompt": "count", "max_tokens": 40, "stream": True, "ignore_eos": True}
        async with served.fresh() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            pieces = answer.aiter_bytes()
            got = await anext(pieces)
            served.process.send_signal(signal.SIGTERM)
            async for piece in pieces:
                got += piece
        assert got.rstrip().endswith(b"data: [DONE]")
        async with asyncio.timeout(SECONDS):
            assert await served.process.wait() == 0


async def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with engines(1) as (engine,), serving(tmp_path, [engine.url], "--workers", "2") as served:
        workers = served.workers()
        served.process.kill()
        await served.process.wait()

        async def gone() -> bool:
            return not any(Path(f"/proc/{pid}").exists() for pid in workers)

        await until(gone)


async def test_a_frozen_worker_is_missed_and_replaced(tmp_path: Path) -> None:
    async with (
        engines(1) as (engine,),
        serving(tmp_path, [engine.url], "--workers", "3", worker_timeout_s=6) as served,
    ):
        assert (await served.chat("hello")).status_code == 200

        async def whole() -> bool:
            return await served.metric('kvrouter_workers{state="serving"}') == 3

        await until(whole)
        frozen = served.workers()[0]
        os.kill(frozen, signal.SIGSTOP)

        async def known() -> bool:
            return await served.metric('kvrouter_workers{state="silent"}') == 1

        await until(known)
        assert (await served.get("/ready")).json()["workers"] == {"running": 2, "of": 3}
        # What it counted stays in the sums.
        assert await served.metric("kvrouter_requests_total") == 1

        async def replaced() -> bool:
            return served.log.count("router.serving: serving on") >= 4 and len(served.workers()) == 3

        await until(replaced)
        assert frozen not in served.workers()
        assert "(server.worker_timeout_s) and is ended" in served.log
        assert (await served.chat("again")).status_code == 200
        await until(whole)


async def test_where_every_worker_dies_again_and_again_whoever_comes_is_told_or_served(tmp_path: Path) -> None:
    async with engines(1) as (engine,), serving(tmp_path, [engine.url], "--workers", "2") as served:
        statuses: set[int] = set()

        async def told() -> bool:
            for pid in served.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(httpx.TransportError):
                statuses.add((await served.get("/ready")).status_code)
            return 503 in statuses

        await until(told)
        assert "requests are answered 503 until one does" in served.log

        async def serves_again() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await served.chat("hello")).status_code == 200
            return False

        await until(serves_again)

        async def all_answer() -> bool:
            return {(await served.get("/ready")).status_code for _ in range(5)} == {200}

        await until(all_answer)
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await served.process.wait() == 0
    assert statuses <= {200, 503}
    assert "Traceback" not in served.log


async def test_every_line_of_a_worker_names_it(tmp_path: Path) -> None:
    async with engines(1) as (engine,), serving(tmp_path, [engine.url], "--workers", "2") as served:
        for _ in range(6):
            await served.chat("hello")
    lines = [line for line in served.log.splitlines() if "serving on" in line or "kvrouter.access" in line]
    assert len(lines) == 8
    assert all(re.search(r" INFO    worker [01] (router.serving|kvrouter.access): ", line) for line in lines)
    starts = [line for line in lines if "serving on" in line]
    assert {line.split(" worker ")[1][0] for line in starts} == {"0", "1"}


async def test_what_a_killed_parent_left_is_taken_away_by_the_next(tmp_path: Path, short_path: Path) -> None:
    environment = {"TMPDIR": str(short_path)}
    async with engines(1) as (engine,):
        async with serving(tmp_path, [engine.url], "--workers", "2", environment=environment) as served:
            served.process.kill()
            await served.process.wait()
        (left,) = short_path.glob("kvrouter-*")
        async with serving(tmp_path, [engine.url], "--workers", "2", environment=environment) as served:
            assert not left.exists()
            assert (await served.chat("hello")).status_code == 200
            served.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(SECONDS):
                assert await served.process.wait() == 0
        assert list(short_path.glob("kvrouter-*")) == []


async def test_a_temporary_folder_with_a_long_name_is_no_hindrance(tmp_path: Path) -> None:
    temporary = tmp_path / ("x" * 120)
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    async with (
        engines(1) as (engine,),
        serving(tmp_path, [engine.url], "--workers", "2", environment=environment) as served,
    ):
        assert (await served.chat("hello")).status_code == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_two_colons_serve_both_kinds_of_addresses(tmp_path: Path) -> None:
    async with engines(1) as (engine,), serving(tmp_path, [engine.url], "--workers", "2", "--host", "[::]") as served:
        assert f"2 workers on [::]:{served.port}" in served.log
        assert f"serving on http://[::]:{served.port}" in served.log
        assert (await served.get("/ready")).status_code == 200
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            assert (await client.get(f"http://[::1]:{served.port}/ready")).status_code == 200
