"""Memory stays flat over thousands of requests that end badly. In a process of its own, so slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.field import CHAT, chat, streamed
from tests.support.process import ServedRouter, serving
from tests.support.rawclient import dumped, left, post
from tests.support.stub_engine import Call, StubEngine, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MEGABYTE = 1024 * 1024
TOGETHER = 50


async def by_turns(jobs: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """At most `TOGETHER` at a time."""
    turn = asyncio.Semaphore(TOGETHER)

    async def one(job: Callable[[], Awaitable[Any]]) -> None:
        async with turn:
            await job()

    await asyncio.gather(*(one(job) for job in jobs))


async def at_rest(served: ServedRouter) -> None:
    async with asyncio.timeout(60):
        while True:
            page = (await served.client.get("/metrics")).text
            lines = [line for line in page.splitlines() if line.startswith("kvrouter_inflight_requests{")]
            if "kvrouter_active_requests 0.0" in page and all(line.endswith(" 0.0") for line in lines):
                return
            await asyncio.sleep(0.2)


async def test_mem_03_connections_that_are_reset_after_their_answer_leave_nothing(tmp_path: Path) -> None:
    async with StubEngine(serve) as engine, serving(tmp_path / "kv.yaml", [engine.url]) as served:

        async def asked_then_reset(number: int) -> None:
            await left(served, post(CHAT, dumped(chat(f"q {number}"))), after_s=0.02)

        async def storm(count: int) -> None:
            await by_turns(partial(asked_then_reset, number) for number in range(count))
            await at_rest(served)
            # Past the keep-alive time of the last connection.
            await asyncio.sleep(6)

        await storm(1000)
        resident, files = served.resident_bytes(), served.open_files()
        await storm(5000)
        assert served.resident_bytes() - resident < 40 * MEGABYTE
        assert served.open_files() <= files + 20


async def test_mem_04_requests_that_are_aborted_or_fail_are_forgotten(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        body = call.body
        if b"abort" in body:
            await call.hang()
        if b"fail" in body:
            call.reset()
        await serve(call)

    async with (
        StubEngine(script) as engine,
        serving(tmp_path / "kv.yaml", [engine.url], pool={"unhealthy_after": 1_000_000}) as served,
    ):

        async def one(kind: int, number: int) -> None:
            if kind == 0:
                await left(served, post(CHAT, dumped(streamed(f"abort {number}"))), after_s=0.02)
            else:
                text = f"{'fail' if kind == 1 else 'good'} {number}"
                answer: httpx.Response = await served.client.post(CHAT, json=chat(text))
                assert answer.status_code == (502 if kind == 1 else 200)

        async def half(start: int) -> int:
            await by_turns(partial(one, kind, number) for number in range(start, start + 1500) for kind in range(3))
            await at_rest(served)
            return served.resident_bytes()

        first = await half(0)
        second = await half(1500)
        assert second - first < 15 * MEGABYTE
