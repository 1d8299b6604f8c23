"""Each time-out towards engines on each path: a host that is down, and engines that fall silent at any point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.black_hole import black_hole
from tests.support.field import CHAT, COMPLETIONS, ESTIMATED, Field, chat, pd_field, until
from tests.support.rawserver import Peer
from tests.support.router import client_of, running_router
from tests.support.stub_engine import HAND_OFF, JSON, Call, Script, StubEngine, completed, serve, stubs

LONG = "a long prompt " * 60
NEVER_S = 600.0
SOON_S = 0.3
WITHIN_S = 60.0
"""By when every answer must be there: far from `SOON_S` on the slowest machine, far from `NEVER_S` on any."""
SHORT: dict[str, Any] = {
    "upstream__connect_timeout_s": SOON_S,
    "upstream__first_byte_timeout_s": SOON_S,
    "upstream__idle_timeout_s": SOON_S,
    "pd__prefill_timeout_s": SOON_S,
    # No probe speaks before the requests do, and no request speaks for the others.
    "pool__probe_timeout_s": NEVER_S,
    "pool__unhealthy_after": 1000,
}
PATIENT = {**SHORT, "upstream__first_byte_timeout_s": NEVER_S, "upstream__idle_timeout_s": NEVER_S}
"""For engines that answer, however slow the machine is: only connections and prefill legs are not waited for."""


async def silent(call: Call) -> None:
    await call.hang()


async def mid_head(call: Call) -> None:
    await call.peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
    await call.hang()


async def mid_body(call: Call) -> None:
    if call.json.get("stream"):
        await call.head()
        await call.chunk(b'data: {"choices": [')
    else:
        await call.head(200, JSON, length=500)
        await call.peer.send(b'{"choices": [')
    await call.hang()


class Asked(NamedTuple):
    status: int
    body: bytes
    cut: bool


PATHS = {
    "chat": ("POST", CHAT, chat()),
    "chat, streamed": ("POST", CHAT, chat(stream=True)),
    "completion": ("POST", COMPLETIONS, {"model": "stub", "prompt": "x"}),
    "completion, streamed": ("POST", COMPLETIONS, {"model": "stub", "prompt": "x", "stream": True}),
    "response": ("POST", "/v1/responses", {"model": "stub", "input": "x"}),
    "response, streamed": ("POST", "/v1/responses", {"model": "stub", "input": "x", "stream": True}),
    "message": ("POST", "/v1/messages", {"model": "stub", "max_tokens": 5, "messages": chat()["messages"]}),
    "embedding": ("POST", "/v1/embeddings", {"model": "stub", "input": "x"}),
    "stored response": ("GET", "/v1/responses/resp_1", None),
}
GIVEN_AT_ONCE = {"chat, streamed", "completion, streamed", "response, streamed", "embedding", "stored response"}
"""Their beginning goes to the client as it comes, so a silence later on can only cut them."""


async def ask(client: httpx.AsyncClient, name: str) -> Asked:
    method, target, body = PATHS[name]
    received, status, cut = b"", 0, False
    async with asyncio.timeout(WITHIN_S):
        try:
            async with client.stream(method, target, json=body) as answer:
                status = answer.status_code
                async for piece in answer.aiter_raw():
                    received += piece
        except httpx.RemoteProtocolError:
            cut = True
    return Asked(status, received, cut)


async def ask_everything(client: httpx.AsyncClient) -> dict[str, Asked]:
    return dict(zip(PATHS, await asyncio.gather(*(ask(client, name) for name in PATHS)), strict=True))


@asynccontextmanager
async def routed(*urls: str, **flags: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    specs = [{"url": url} for url in urls]
    async with running_router(specs, **{**ESTIMATED, **SHORT, **flags}) as router, client_of(router) as client:
        yield client, router.app
        await until(lambda: router.app.inflight.snapshot() == {} and not router.app.lifecycle.active)


@pytest.fixture
def down() -> Iterator[str]:
    with black_hole() as url:
        yield url


async def test_a_host_that_is_down_is_given_up_after_the_connect_time_out(down: str) -> None:
    async with routed(down) as (client, _):
        asked = await ask_everything(client)
        assert {name: (each.status, each.cut) for name, each in asked.items()} == dict.fromkeys(PATHS, (503, False))
        assert all(b'"no_endpoint"' in each.body for each in asked.values())


async def test_a_host_that_is_down_costs_no_request_while_another_is_up(down: str) -> None:
    async with stubs(serve) as (engine,), routed(down, engine.url, **PATIENT) as (client, _):
        asked = await ask_everything(client)
        assert {name: (each.status, each.cut) for name, each in asked.items()} == dict.fromkeys(PATHS, (200, False))
        assert len(engine.calls) == len(PATHS)


@pytest.mark.parametrize("script", [silent, mid_head])
async def test_an_engine_that_does_not_begin_is_given_up_after_the_first_byte_time_out(script: Script) -> None:
    async with stubs(script) as (engine,), routed(engine.url) as (client, _):
        asked = await ask_everything(client)
        assert {name: (each.status, each.cut) for name, each in asked.items()} == dict.fromkeys(PATHS, (504, False))
        assert all(b'"upstream_timeout"' in each.body for each in asked.values())
        await until(lambda: engine.aborted == len(PATHS))


async def test_an_engine_that_falls_silent_in_its_answer_is_given_up_after_the_idle_time_out() -> None:
    async with stubs(mid_body) as (engine,), routed(engine.url) as (client, _):
        asked = await ask_everything(client)
        assert {name: (each.status, each.cut) for name, each in asked.items()} == {
            name: (200, True) if name in GIVEN_AT_ONCE else (504, False) for name in PATHS
        }
        streams = {name for name, each in asked.items() if each.cut and b'"error"' in each.body}
        assert streams == {name for name in PATHS if name.endswith("streamed")}
        await until(lambda: engine.aborted == len(PATHS))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [silent, mid_head, mid_body])
async def test_a_prefill_leg_has_one_time_for_all_of_its_answer(script: Script, stream: bool) -> None:
    async with asyncio.timeout(WITHIN_S), pd_field([script, script], [serve], **PATIENT) as at:
        assert (await at.chat(LONG, stream=stream)).status_code == 200
        assert [len(engine.calls) for engine in at.engines] == [1, 1, 1]
        assert "kv_transfer_params" not in at.engines[2].calls[0].json
        await at.at_rest()


async def test_a_prefiller_that_is_down_is_passed_over_after_the_connect_time_out(down: str) -> None:
    decider = "always-disagg-pd-decider"
    flags = {"scheduling__plugins": [{"type": decider}], "scheduling__decider": decider}
    async with stubs(serve) as (decoder,):
        specs = [{"url": down, "role": "prefill"}, {"url": decoder.url, "role": "decode"}]
        async with running_router(specs, **{**ESTIMATED, **PATIENT, **flags}) as router, client_of(router) as client:
            async with asyncio.timeout(WITHIN_S):
                answer = await client.post(CHAT, json=chat(LONG))
            assert answer.json() == completed()
            assert "kv_transfer_params" not in decoder.calls[0].json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [silent, mid_head, mid_body])
async def test_a_decode_leg_with_a_hand_off_has_the_same_time_outs(script: Script, stream: bool) -> None:
    flags = {**SHORT, "pd__prefill_timeout_s": NEVER_S}
    async with asyncio.timeout(WITHIN_S), pd_field([serve], [script], **flags) as at:
        if stream and script is mid_body:
            with pytest.raises(httpx.RemoteProtocolError):
                await at.chat(LONG, stream=stream)
        else:
            assert (await at.chat(LONG, stream=stream)).status_code == 504
        assert at.engines[1].calls[0].json["kv_transfer_params"] == HAND_OFF
        await at.at_rest()


class HalfDead(StubEngine):
    """An ordinary engine but for one control path."""

    def __init__(self, target: str, fault: str) -> None:
        super().__init__(serve)
        self._target = target
        self._fault = fault

    async def _control(self, peer: Peer, target: str) -> None:
        if target != self._target:
            await super()._control(peer, target)
            return
        if self._fault != "silent":
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n")
        if self._fault == "mid-body":
            await peer.send(b"\r\nabc")
        await asyncio.Event().wait()


FAULTS = ["silent", "mid-head", "mid-body"]


@asynccontextmanager
async def half_dead(target: str, fault: str, **flags: Any) -> AsyncIterator[Field]:
    quick = {"pool__probe_timeout_s": SOON_S, "pool__probe_interval_s": 0.1, "pool__scrape_interval_s": 0.1}
    async with (
        stubs(HalfDead(target, fault)) as engines,
        running_router([{"url": engines[0].url}], **{**ESTIMATED, **quick, **flags}) as router,
        client_of(router) as client,
    ):
        yield Field(router, client, engines)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_probe_is_given_up_after_its_time_out_and_counts_as_failed(fault: str) -> None:
    async with half_dead("/health", fault) as at:
        await until(lambda: at.router.app.pool.snapshot()[0].health == "unhealthy")


async def test_probes_and_scrapes_of_a_host_that_is_down_end_in_time(down: str) -> None:
    quick = {"pool__probe_timeout_s": SOON_S, "pool__probe_interval_s": 0.1, "pool__scrape_interval_s": 0.1}
    async with running_router([{"url": down}], **{**ESTIMATED, **quick}) as router:
        record = router.app.pool.record(down.removeprefix("http://"))
        assert record is not None
        await until(lambda: record.tracker.verdict == "unhealthy" and record.scrapes_failed > 1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_metrics_page_that_does_not_come_holds_nothing_up(fault: str) -> None:
    async with half_dead("/metrics", fault, pool__unhealthy_after=1000) as at:
        await until(lambda: at.engine.targets.count("/metrics") > 2)
        assert at.router.app.pool.snapshot()[0].health == "healthy"
        assert (await at.chat()).status_code == 200


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_model_list_that_does_not_come_holds_nothing_up(fault: str) -> None:
    async with half_dead("/v1/models", fault, pool__unhealthy_after=1000) as at:
        await until(lambda: at.engine.targets.count("/v1/models") > 1)
        async with asyncio.timeout(WITHIN_S):
            assert (await at.client.get("/v1/models")).status_code == 200
            assert (await at.chat()).status_code == 200


@pytest.mark.parametrize("script", [silent, mid_head, mid_body])
async def test_an_engine_that_does_not_tokenize_in_time_is_done_without(script: Script) -> None:
    async def tokenizes_never(call: Call) -> None:
        await (script(call) if call.path == "/tokenize" else serve(call))

    flags = {**PATIENT, "tokenization__remote": True}
    async with stubs(tokenizes_never) as (engine,), routed(engine.url, **flags) as (client, _):
        assert (await ask(client, "chat")).status == 200
        assert [call.path for call in engine.calls] == ["/tokenize", CHAT]
