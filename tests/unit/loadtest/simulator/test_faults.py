"""Misbehaviour on demand, clients that leave, and engines that end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from loadtest.simulator import EngineConfig, Faults, RunningEngine
from tests.support.recordings import events, recording
from tests.support.simulator import FAST, engines, http

BODY: dict[str, Any] = {"prompt": "Hello there", "max_tokens": 20, "stream": True}
SLOW = EngineConfig(profile="8b", speed=0.2)
"""A token each 35 ms."""


async def set_faults(client: httpx.AsyncClient, **faults: Any) -> None:
    assert (await client.post("/sim/faults", json=faults)).status_code == 200


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def used(engine: RunningEngine) -> float:
    return engine.engine.ranks[0].core.cache.used_fraction


async def test_each_answer_is_remembered_with_the_digest_of_its_bytes() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        for stream in (True, False):
            answer = await client.post(
                "/v1/completions", json={**BODY, "stream": stream}, headers={"X-Request-Id": "r/1"}
            )
            seen = (await client.get("/sim/requests/r%2F1")).json()
            assert seen["sha256"] == hashlib.sha256(answer.content).hexdigest()
            assert (seen["status"], seen["done"], seen["aborted"]) == (200, True, False)
        assert len(seen["attempts"]) == 2
        assert [r["request_id"] for r in (await client.get("/sim/requests")).json()["requests"]] == ["r/1", "r/1"]
        assert (await client.get("/sim/requests/unknown")).status_code == 404


async def test_errors_busy_and_failing_paths() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, error_rate=1.0, error_status=502)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 502
        assert (await client.get("/health")).status_code == 200
        await set_faults(client, busy=True)
        answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")
        await set_faults(client, fail_paths={"/health": 503, "/metrics": 500})
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/metrics")).status_code == 500
        await set_faults(client)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_a_counted_fault_ends_by_itself() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, busy=True, count=2)
        statuses = [(await client.post("/v1/completions", json=BODY)).status_code for _ in range(3)]
        assert statuses == [503, 503, 200]


@pytest.mark.parametrize("ending", ["fin", "rst"])
async def test_a_stream_is_cut_after_so_many_chunks(ending: str) -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, cut_after_chunks=3, cut_with=ending)
        got = b""
        with pytest.raises(httpx.TransportError):
            async with client.stream("POST", "/v1/completions", json=BODY, headers={"X-Request-Id": "cut"}) as answer:
                async for piece in answer.aiter_raw():
                    got += piece
        await set_faults(client)
        seen = (await client.get("/sim/requests/cut")).json()
        await until(lambda: used(engine) == 0)
    assert seen["chunks"] == 3 and not seen["done"]
    if ending == "fin":
        assert seen["sha256"] == hashlib.sha256(got).hexdigest()


async def test_a_whole_answer_is_cut_in_its_middle() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, cut_after_chunks=0)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json={**BODY, "stream": False})


async def test_one_byte_chunks_carry_the_same_bytes() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, one_byte_chunks=True)
        answer = await client.post("/v1/completions", json={**BODY, "max_tokens": 3}, headers={"X-Request-Id": "b"})
        seen = (await client.get("/sim/requests/b")).json()
    assert seen["chunks"] == len(answer.content)
    assert list(events(answer.text))[-1] == "[DONE]"


async def test_delays_come_before_the_head_and_before_the_first_byte() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        await set_faults(client, delay_head_s=0.1, delay_first_byte_s=0.1)
        began = time.monotonic()
        async with client.stream("POST", "/v1/completions", json=BODY) as answer:
            head = time.monotonic() - began
            await answer.aread()
        assert head >= 0.1
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("faults", [{"hang": True}, {"hang_after_chunks": 2}])
async def test_a_hanging_engine_sends_no_more_and_lets_go_when_its_client_leaves(faults: dict[str, Any]) -> None:
    async with engines(1) as (engine,), http(engine.url, timeout=0.3) as client:
        await set_faults(client, **faults)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=BODY, headers={"X-Request-Id": "h"})
        await until(lambda: engine.engine.ledger.find("h")[-1].aborted)
        await until(lambda: used(engine) == 0)


async def test_a_client_that_leaves_aborts_its_request_and_frees_its_blocks() -> None:
    async with engines(SLOW) as (engine,), http(engine.url) as client:
        for stream in (True, False):
            body = {**BODY, "max_tokens": 500, "stream": stream}
            leaving = asyncio.create_task(client.post("/v1/completions", json=body, headers={"X-Request-Id": "left"}))
            await until(lambda: used(engine) > 0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await until(lambda: used(engine) == 0)
            entry = engine.engine.ledger.find("left")[-1]
            assert entry.aborted and entry.aborted_at is not None and not entry.done
        assert engine.engine.ranks[0].stats.finished["abort"] == 2
        assert engine.engine.in_flight == 0


async def test_a_waiting_request_whose_client_leaves_is_dropped_too() -> None:
    async with engines(SLOW, max_num_seqs=1) as (engine,), http(engine.url) as client:
        core = engine.engine.ranks[0].core
        body = {**BODY, "max_tokens": 500}
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(2)]
        await until(lambda: core.num_waiting == 1 and core.num_running == 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: core.num_waiting == core.num_running == 0)


async def test_a_full_engine_refuses_what_comes_on_top() -> None:
    async with engines(SLOW, max_num_queued_reqs=1) as (engine,), http(engine.url) as client:
        running = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: engine.engine.in_flight == 1)
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.status_code == 503
        assert "currently busy" in answer.json()["error"]["message"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_dying_engine_ends_streams_with_an_error_event_and_then_refuses_connections() -> None:
    async with engines(SLOW) as (engine,), http(engine.url) as client:
        streaming = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 500}))
        await until(lambda: engine.engine.ranks[0].core.counters.generation_tokens > 2)
        await set_faults(client, die=True)
        answer = await streaming
        assert list(events(answer.text))[-2:] == recording("chat_stream_engine_killed_midstream").events()[-2:]
        assert engine.dead.is_set()
        with pytest.raises(httpx.TransportError):
            async with http(engine.url) as other:
                await other.get("/health")


async def test_a_killed_engine_cuts_its_streams_without_a_word() -> None:
    async with engines(SLOW) as (engine,), http(engine.url) as client:
        streaming = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 500}))
        await until(lambda: engine.engine.ranks[0].core.counters.generation_tokens > 2)
        await engine.kill()
        with pytest.raises(httpx.TransportError):
            await streaming


async def test_a_stopped_engine_ends_streams_as_if_they_were_whole() -> None:
    async with engines(SLOW) as (engine,), http(engine.url) as client:
        streaming = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 500}))
        await until(lambda: engine.engine.ranks[0].core.counters.generation_tokens > 2)
        await engine.stop()
        answer = await streaming
    *_, last, done = events(answer.text)
    assert (answer.status_code, last["choices"][0]["finish_reason"], done) == (200, "abort", "[DONE]")


async def test_a_stopped_engine_with_a_time_out_lets_streams_finish() -> None:
    async with engines(SLOW, shutdown_timeout_s=20.0) as (engine,), http(engine.url) as client:
        streaming = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 8}))
        await until(lambda: engine.engine.ranks[0].core.counters.generation_tokens > 2)
        await engine.stop()
        answer = await streaming
    *_, last, _done = events(answer.text)
    assert last["choices"][0]["finish_reason"] == "length"


async def test_a_paused_engine_is_healthy_and_holds_requests_unseen() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        assert (await client.post("/pause?mode=keep")).json() == recording_body("paused")
        held = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: engine.engine.ledger.recent(1) and engine.engine.ledger.recent(1)[0].status == 200)
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert engine.engine.ranks[0].core.num_waiting == 0
        assert (await client.post("/resume")).json() == recording_body("resumed")
        assert (await held).status_code == 200


def recording_body(status: str) -> dict[str, str]:
    return {"status": status}


async def test_a_sleeping_engine_says_so_and_wakes_up() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        assert (await client.post("/sleep?level=1")).json() == {"status": "sleeping", "level": 1}
        assert 'sleep_state="weights_offloaded"} 1.0' in (await client.get("/metrics")).text
        await client.post("/wake_up")
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_faults_of_the_configuration_hold_from_the_start_and_bad_ones_are_refused() -> None:
    config = EngineConfig(profile="instant", faults=Faults(busy=True))
    async with engines(config) as (engine,), http(engine.url) as client:
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        answer = await client.post("/sim/faults", json={"explode": True})
        assert answer.status_code == 400
        assert "explode" in answer.json()["error"]["message"]


async def test_a_client_that_half_reads_holds_nobody_up() -> None:
    async with engines(FAST) as (engine,), http(engine.url) as client:
        raw = socket.create_connection((engine.host, engine.port))
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        raw.close()


async def test_engines_on_fast_forward_share_one_process() -> None:
    async with engines(20, kv_events=False) as running, http() as client:
        answers = await asyncio.gather(*(client.post(f"{e.url}/v1/completions", json=BODY) for e in running))
    assert {answer.status_code for answer in answers} == {200}
    assert len({e.port for e in running}) == 20
    texts = {"".join(e["choices"][0]["text"] for e in events(a.text) if isinstance(e, dict)) for a in answers}
    assert len(texts) == 1


async def test_the_documented_faults_are_all_there_are_and_the_example_is_taken() -> None:
    text = (Path(__file__).parents[4] / "docs/operations.md").read_text(encoding="utf-8")
    section = text.split("### Engines that misbehave on demand")[1].split("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == {field.name for field in msgspec.structs.fields(Faults)}
    (example,) = re.findall(r"/sim/faults -d '(.*)'", section)
    (flag,) = re.findall(r"--faults '(.*?)'", section)
    async with engines(FAST) as (engine,), http(engine.url) as client:
        for given in (example, flag):
            answer = await client.post("/sim/faults", content=given)
            assert answer.status_code == 200
            shown = (await client.get("/sim/faults")).json()["faults"]
            assert json.loads(given).items() <= shown.items()
