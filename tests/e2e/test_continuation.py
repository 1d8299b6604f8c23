"""A stream that broke off, gone on with by another engine: the client sees one answer, the one it would have had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from loadtest.simulator import RunningEngine
from loadtest.simulator.settings import Faults
from tests.support.field import CHAT, COMPLETIONS, ESTIMATED, field, streamed, until
from tests.support.router import RunningRouter, client_of, endpoints, running_router
from tests.support.simulator import engines, http
from tests.support.stub_engine import Call, role, token, tokens_in

ON: dict[str, Any] = {"retries__continue_streams": True, **ESTIMATED}
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Tell me of the sea"}]},
    COMPLETIONS: {"prompt": "Once upon a time"},
}


class Broken:
    """A router over one engine that cuts what it begins and one that is well."""

    def __init__(self, router: RunningRouter, client: httpx.AsyncClient, running: list[RunningEngine]) -> None:
        self.router = router
        self.client = client
        self.cutting, self.well = running

    async def unbroken(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """What an engine says by itself, asked without the router."""
        async with http(self.well.url) as engine:
            return events((await engine.post(path, json=body)).content)

    async def ask(self, path: str, body: dict[str, Any]) -> bytes:
        """Served by the cutting engine first. The whole body, however it ends."""
        self.router.app.pool.drain(self.router.endpoint_of(self.well))
        asking = asyncio.create_task(self._read(path, body))
        await until(lambda: self.cutting.engine.ledger.recent(1) or asking.done())
        self.router.app.pool.drain(self.router.endpoint_of(self.well), draining=False)
        return await asking

    async def _read(self, path: str, body: dict[str, Any]) -> bytes:
        received = b""
        try:
            async with self.client.stream("POST", path, json=body) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        except httpx.RemoteProtocolError:
            received += b"<cut>"
        await until(lambda: self.router.app.inflight.snapshot() == {} and self.router.app.lifecycle.active == 0)
        return received

    async def page(self) -> str:
        return (await self.client.get("/metrics")).text


@asynccontextmanager
async def broken(faults: Faults, *, profile: str = "8b", **flags: Any) -> AsyncIterator[Broken]:
    async with (
        engines(2, kv_events=False, profile=profile) as running,
        running_router(endpoints(running), **{**ON, **flags}) as router,
        client_of(router) as client,
    ):
        running[0].engine.set_faults(faults)
        yield Broken(router, client, running)


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def text_of(said: list[dict[str, Any]]) -> str:
    parts = [choice for event in said for choice in event["choices"]]
    return "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)


def without_names(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two engines name and date their answers differently, and count what they found cached."""
    told = ("id", "created", "usage", "system_fingerprint")
    return [{name: value for name, value in event.items() if name not in told} for event in said]


@pytest.mark.parametrize(
    "usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("after", [2, 7, 12])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_client_has_the_events_of_an_unbroken_stream(
    path: str, after: int, usage: dict[str, Any] | None
) -> None:
    body = {"model": "sim-model", "max_tokens": 12, "temperature": 0, "stream": True, **PROMPTS[path]}
    if usage is not None:
        body["stream_options"] = usage
    async with broken(Faults(cut_after_chunks=after, cut_with="rst")) as at:
        received = await at.ask(path, body)
        said, whole = events(received), await at.unbroken(path, body)
        assert received.endswith(b"data: [DONE]\n\n")
        assert len({(event["id"], event["created"]) for event in said}) == 1
        assert text_of(said) == text_of(whole)
        if usage is not None:
            counted, wanted = said[-1]["usage"], whole[-1]["usage"]
            assert [counted[name] for name in wanted if name.endswith("_tokens")] == [
                wanted[name] for name in wanted if name.endswith("_tokens")
            ]
            said, whole = [{**each, "usage": None} for each in said], [{**each, "usage": None} for each in whole]
        assert without_names(said) == without_names(whole)


async def test_it_is_counted_and_the_requests_outcome_is_that_of_a_whole_answer() -> None:
    async with broken(Faults(cut_after_chunks=3)) as at:
        body = {"model": "sim-model", "max_tokens": 9, "stream": True, **PROMPTS[CHAT]}
        await at.ask(CHAT, body)
        page = await at.page()
        assert 'kvrouter_continuations_total{outcome="ok"} 1.0' in page
        assert 'kvrouter_requests_total{api="chat",outcome="ok",status="200"} 1.0' in page
        assert "kvrouter_output_tokens_total 9.0" in page


async def test_a_client_that_asked_for_token_ids_gets_them_all() -> None:
    body = {"model": "sim-model", "max_tokens": 8, "stream": True, "return_token_ids": True, **PROMPTS[COMPLETIONS]}
    async with broken(Faults(cut_after_chunks=4)) as at:
        said, whole = events(await at.ask(COMPLETIONS, body)), await at.unbroken(COMPLETIONS, body)
        assert without_names(said) == without_names(whole)


async def test_an_engine_that_is_told_to_stop_loses_no_stream() -> None:
    body = {"model": "sim-model", "max_tokens": 40, "stream": True, **PROMPTS[CHAT]}
    async with broken(Faults(), profile="demo") as at:
        asking = asyncio.create_task(at.ask(CHAT, body))
        await until(lambda: any(entry.chunks > 3 for entry in at.cutting.engine.ledger.recent(1)))
        at.cutting.engine.stop()
        received = await asking
        assert b"abort" not in received
        assert text_of(events(received)) == text_of(await at.unbroken(CHAT, body))


async def test_a_stream_of_an_engine_that_froze_is_gone_on_with_once_it_is_down() -> None:
    body = {"model": "sim-model", "max_tokens": 9, "stream": True, **PROMPTS[CHAT]}
    quick: dict[str, Any] = {
        "pool__probe_interval_s": 0.05,
        "pool__unhealthy_after": 2,
        "upstream__unhealthy_idle_timeout_s": 0.3,
    }
    async with broken(Faults(hang_after_chunks=4), **quick) as at:
        asking = asyncio.create_task(at.ask(CHAT, body))
        await until(lambda: any(entry.chunks == 4 for entry in at.cutting.engine.ledger.recent(1)))
        at.cutting.engine.set_faults(Faults(fail_paths={"/health": 503}))
        assert text_of(events(await asking)) == text_of(await at.unbroken(CHAT, body))
        await until(lambda: not at.cutting.engine.in_flight)


async def test_usage_that_only_the_router_asked_for_is_not_shown_after_the_seam_either() -> None:
    body = {"model": "sim-model", "max_tokens": 8, "stream": True, **PROMPTS[CHAT]}
    async with broken(Faults(cut_after_chunks=3), usage__inject_stream_usage=True) as at:
        said = events(await at.ask(CHAT, body))
        assert not any(event.get("usage") for event in said)
        assert text_of(said) == text_of(await at.unbroken(CHAT, body))


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["."]},
        {"seed": 7},
        {"presence_penalty": 0.5},
        {"logprobs": True},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "required"},
        {"vllm_xargs": {"a": "b"}},
        {"of_a_later_version": 1},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_what_could_not_be_gone_on_with_exactly_stays_visibly_cut(more: dict[str, Any]) -> None:
    body = {"model": "sim-model", "max_tokens": 30, "stream": True, **PROMPTS[CHAT], **more}
    async with broken(Faults(cut_after_chunks=3)) as at:
        received = await at.ask(CHAT, body)
        assert received.endswith(b"<cut>")
        assert b"[DONE]" not in received
        assert b'"error"' in received
        assert not at.well.engine.ledger.recent(1)
        assert "kvrouter_continuations_total{" not in await at.page()


async def test_it_is_off_by_default() -> None:
    body = {"model": "sim-model", "max_tokens": 12, "stream": True, **PROMPTS[CHAT]}
    async with broken(Faults(cut_after_chunks=3), retries__continue_streams=False) as at:
        assert (await at.ask(CHAT, body)).endswith(b"<cut>")


async def test_past_the_retry_budget_the_cut_stays_visible() -> None:
    body = {"model": "sim-model", "max_tokens": 12, "stream": True, **PROMPTS[CHAT]}
    async with broken(Faults(cut_after_chunks=3), retries__budget_ratio=0.0, retries__budget_reserve=0) as at:
        assert (await at.ask(CHAT, body)).endswith(b"<cut>")


async def test_a_second_engine_that_breaks_too_is_followed_by_a_third() -> None:
    body = {"model": "sim-model", "max_tokens": 20, "stream": True, **PROMPTS[CHAT]}
    async with (
        engines(3, kv_events=False, profile="8b") as running,
        running_router(endpoints(running), **ON) as router,
        client_of(router) as client,
    ):
        cutting, well = running[:2], running[2]
        for engine in cutting:
            engine.engine.set_faults(Faults(cut_after_chunks=6))
        router.app.pool.drain(router.endpoint_of(well))
        asking = asyncio.create_task(client.post(CHAT, json=body))
        await until(lambda: all(engine.engine.ledger.recent(1) for engine in cutting))
        router.app.pool.drain(router.endpoint_of(well), draining=False)
        said = events((await asking).content)
        async with http(well.url) as asked:
            whole = events((await asked.post(CHAT, json=body)).content)
        assert without_names(said) == without_names(whole)
        assert 'kvrouter_continuations_total{outcome="ok"} 2.0' in (await client.get("/metrics")).text


async def test_an_engine_that_tells_no_token_ids_is_not_gone_on_from() -> None:
    async def begins(call: Call) -> None:
        assert call.json["return_token_ids"] is True
        await call.head()
        await call.chunk(role())
        await call.chunk(token(0))
        call.reset()

    async with field(begins, begins, **ON) as at:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with at.client.stream("POST", CHAT, json=streamed()) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        assert tokens_in(received) == [0]
        assert at.calls == 1


async def test_a_client_that_leaves_stops_the_engine_that_goes_on() -> None:
    body = {"model": "sim-model", "max_tokens": 500, "stream": True, **PROMPTS[CHAT]}
    async with broken(Faults(cut_after_chunks=3), profile="demo") as at:
        asking = asyncio.create_task(at.ask(CHAT, body))
        await until(lambda: any(entry.chunks > 2 for entry in at.well.engine.ledger.recent(1)))
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not at.well.engine.in_flight)
        await until(lambda: at.router.app.inflight.snapshot() == {} and not at.router.app.lifecycle.active)
        page = (await at.client.get("/metrics")).text
        assert 'kvrouter_continuations_total{outcome="client_gone"} 1.0' in page
