"""Endpoints that leave by a call or by the configuration, and the router's own end: what runs may finish."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from router.pool.spec import EndpointSpec
from tests.support.field import CHAT, Field, field, streamed, until
from tests.support.rawclient import connected, dumped, post
from tests.support.stub_engine import DONE, Call, StubEngine, role, serve, token, tokens_in


class Held:
    """A script whose streams begin, and end when told."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.head()
        await call.chunk(role())
        await call.chunk(token(0))
        await self.end.wait()
        await call.chunk(token(1))
        await call.chunk(DONE)
        await call.end()


async def begun(at: Field) -> tuple[asyncio.Task[httpx.Response], StubEngine]:
    """A stream under way, and the engine it is on; every engine's later answers are whole."""
    asking = asyncio.create_task(at.chat(stream=True))
    await until(lambda: at.calls)
    busy = next(engine for engine in at.engines if engine.calls)
    for engine in at.engines:
        engine.script = serve
    return asking, busy


async def test_a_drained_endpoint_finishes_what_it_has_and_gets_nothing_new_until_resumed() -> None:
    held = Held()
    async with field(held, held) as at:
        asking, busy = await begun(at)
        pool = at.router.app.pool
        assert pool.drain(busy.id)
        for number in range(6):
            assert (await at.chat(f"q {number}")).status_code == 200
        assert len(busy.calls) == 1
        held.end.set()
        assert tokens_in((await asking).content) == [0, 1]
        assert pool.drain(busy.id, draining=False)
        await until(lambda: pool.usable(busy.id))
        await asyncio.gather(*(at.chat(f"again {number}") for number in range(12)))
        assert len(busy.calls) > 1
        await at.at_rest()


async def test_an_endpoint_that_leaves_the_configuration_finishes_what_it_has_and_is_forgotten() -> None:
    held = Held()
    async with field(held, held) as at:
        asking, busy = await begun(at)
        app = at.router.app
        app.pool.set_endpoints([EndpointSpec(url=engine.url) for engine in at.engines if engine is not busy])
        assert app.inflight.get(busy.id).requests == 1
        for number in range(6):
            assert (await at.chat(f"q {number}")).status_code == 200
        assert len(busy.calls) == 1
        held.end.set()
        assert tokens_in((await asking).content) == [0, 1]
        await at.at_rest()
        assert busy.id not in (await at.client.get("/metrics")).text
        assert busy.id not in (await at.client.get("/debug/endpoints")).text


@pytest.mark.parametrize("stream", [True, False])
async def test_what_outlasts_the_grace_is_cut_with_an_error_and_new_requests_are_refused_before(stream: bool) -> None:
    async def silent(call: Call) -> None:
        await call.hang()

    async with (
        field(Held() if stream else silent, server__shutdown_grace_s=0.5) as at,
        connected(at.router) as client,
        connected(at.router) as late,
    ):
        body = streamed() if stream else {**streamed(), "stream": False}
        await client.send(post(CHAT, dumped(body)))
        await until(lambda: at.calls)
        if stream:
            await client.head()
        at.router.process.stop()
        await until(lambda: at.router.app.lifecycle.draining)
        refused = await late.ask(post(CHAT, dumped(streamed())))
        assert refused.status == 503
        assert b'"shutting_down"' in refused.body
        rest = await client.closed()
        assert b"shutting down" in rest
        assert b"[DONE]" not in rest
        # A chunked body that is cut has no last chunk; an answer that had not begun is a whole refusal.
        assert rest.endswith(b"0\r\n\r\n") is False
        assert (b"503" in rest.split(b"\r\n")[0]) is not stream
        await until(lambda: at.engine.aborted)
