"""Clients that leave: the engine's work stops and every slot comes back."""

from __future__ import annotations

import ast
import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.field import CHAT, chat, field, pd_field, streamed, until
from tests.support.rawclient import connected, dumped, left, post
from tests.support.stub_engine import DONE, Call, completed, serve, token

ROOT = Path(__file__).parents[2]
KEY = {"authorization": "Bearer client-key"}


async def ten_seconds_of_tokens(call: Call) -> None:
    await call.stream(*(token(number) for number in range(200)), DONE, pause_s=0.05)


async def head_after_a_while(call: Call) -> None:
    await asyncio.sleep(0.1)
    await serve(call)


async def never(call: Call) -> None:
    await call.hang()


@pytest.mark.parametrize("keys", [(), ("client-key",)], ids=["open", "with-a-key"])
async def test_dis_02_a_client_that_leaves_mid_stream_stops_the_engine(keys: tuple[str, ...]) -> None:
    async with field(ten_seconds_of_tokens, server__api_keys=list(keys)) as at:
        async with at.client.stream("POST", CHAT, json=streamed(), headers=KEY) as answer:
            pieces = answer.aiter_raw()
            for _ in range(3):
                await anext(pieces)
        await until(lambda: at.engine.aborted == 1, within_s=10)
        await at.at_rest()


async def test_dis_06_a_storm_of_resets_before_the_answer_gives_every_slot_back() -> None:
    async with field(head_after_a_while, upstream__max_idle_per_endpoint=16) as at:
        await left(at.router, *(post(CHAT, dumped(streamed(f"q {number}"))) for number in range(150)))
        async with asyncio.timeout(30):
            for number in range(20):
                assert (await at.chat(f"after {number}")).status_code == 200
        await at.at_rest()


async def test_dis_07_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    rng = random.Random(7)
    async with field(head_after_a_while, upstream__max_idle_per_endpoint=8) as at:

        async def impatient(number: int) -> None:
            for turn in range(4):
                data = post(CHAT, dumped(streamed(f"{number} {turn}")))
                await left(at.router, data, after_s=rng.uniform(0, 0.3))

        await asyncio.gather(*(impatient(number) for number in range(24)))
        await at.at_rest()
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(at.chat(f"after {number}") for number in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        await at.at_rest()


@pytest.mark.parametrize("stream", [False, True])
async def test_dis_08_a_client_that_leaves_during_prefill_starts_no_decode(stream: bool) -> None:
    async with pd_field([never], [serve]) as at:
        prefill, decode = at.engines
        asking = asyncio.create_task(at.chat("long " * 200, stream=stream))
        await until(lambda: prefill.calls)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: prefill.aborted == 1, within_s=10)
        await at.at_rest()
        assert decode.calls == []


async def test_dis_09_with_everything_optional_switched_on_a_departure_is_still_seen() -> None:
    options: dict[str, Any] = {
        "server__api_keys": ["client-key"],
        "server__cors_origins": ["*"],
        "server__access_log": True,
        "usage__inject_stream_usage": True,
        "retries__continue_streams": True,
    }
    async with field(never, **options) as at:

        def aborted(count: int) -> bool:
            return at.engine.aborted == count

        for count, body in enumerate((chat(), streamed()), start=1):
            asking = asyncio.create_task(at.client.post(CHAT, json=body, headers=KEY))
            await until(lambda: not at.engine.over)
            asking.cancel()
            await asyncio.wait([asking])
            await until(partial(aborted, count), within_s=10)
        await at.at_rest()
        assert await at.metric("kvrouter_requests_total", outcome="client_gone") == 2


def test_dis_09_no_middleware_that_hides_disconnects_is_used_anywhere() -> None:
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for source in (ROOT / "router").rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert "BaseHTTPMiddleware" not in names
    assert "middleware" not in names


async def test_dis_02_a_client_that_closes_its_half_counts_as_gone() -> None:
    async with field(never) as at, connected(at.router) as client:
        await client.send(post(CHAT, dumped(chat())))
        await until(lambda: at.engine.calls)
        client.writer.write_eof()
        await until(lambda: at.engine.aborted == 1, within_s=10)


async def test_dis_02_a_client_that_stays_gets_its_answer() -> None:
    async with field(head_after_a_while) as at:
        assert (await at.chat()).json() == completed()
        assert at.engine.aborted == 0
