"""Looking inside a running router, and administering it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from loadtest.redis_server import RedisServer
from tests.support.field import CHAT, chat, field, streamed, until
from tests.support.router import client_of, running_router
from tests.support.stub_engine import Call, completed, serve

ADMIN = {"authorization": "Bearer root-key"}
CLIENT = {"authorization": "Bearer client-key"}
KEYS = {"server__api_keys": ["client-key"], "server__admin_keys": [{"key": "root-key", "name": "ops"}]}
INSIDE = ["/debug/endpoints", "/debug/decisions", "/debug/slots", "/admin/endpoints"]


async def test_a_drained_endpoint_finishes_its_stream_and_gets_nothing_new() -> None:
    going_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await going_on.wait()
        await serve(call)

    async with field(slow, serve) as at:
        first, second = (engine.url.removeprefix("http://") for engine in at.engines)
        assert (await at.client.post(f"/admin/endpoints/{second}/drain")).status_code == 200
        running = asyncio.create_task(at.client.post(CHAT, json=streamed()))
        await until(lambda: len(at.engines[0].calls) == 1)
        assert (await at.client.post(f"/admin/endpoints/{second}/resume")).status_code == 200
        drained = await at.client.post(f"/admin/endpoints/{first}/drain")
        assert drained.json()["drained"] == [first]
        for _ in range(8):
            assert (await at.chat()).status_code == 200
        assert [len(engine.calls) for engine in at.engines] == [1, 8]
        going_on.set()
        assert (await running).text.endswith("[DONE]\n\n")
        shown = {
            entry["id"]: entry["health"] for entry in (await at.client.get("/debug/endpoints")).json()["endpoints"]
        }
        assert shown[first] == "draining"
        assert await at.metric("kvrouter_endpoint_up", endpoint=first) == 0
        assert await at.metric("kvrouter_endpoint_up", endpoint=second) == 1


async def test_where_all_engines_are_drained_readiness_and_requests_are_told_so() -> None:
    async with field(serve, serve) as at:
        for engine in at.engines:
            name = engine.url.removeprefix("http://")
            assert (await at.client.get("/ready")).json()["status"] == "ready"
            assert (await at.client.post(f"/admin/endpoints/{name}/drain")).status_code == 200
        ready = await at.client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "all endpoints drained")
        refused = await at.chat()
        assert refused.status_code == 503
        assert "is drained" in refused.json()["error"]["message"]


async def test_a_router_out_of_service_is_not_ready_and_serves_what_comes() -> None:
    async with field(serve) as at:
        assert (await at.client.post("/admin/drain")).json()["router"] == {"out_of_service": True, "requests": 0}
        assert (await at.client.get("/ready")).status_code == 503
        assert (await at.client.get("/health")).status_code == 200
        assert (await at.chat()).status_code == 200
        assert (await at.client.post("/admin/resume")).status_code == 200
        assert (await at.client.get("/ready")).status_code == 200


async def test_administration_asks_for_an_admin_key_and_says_who_came(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvrouter.audit")
    async with field(serve, **KEYS) as at:
        name = at.engine.url.removeprefix("http://")
        for path in INSIDE:
            for headers in ({}, CLIENT):
                assert (await at.client.get(path, headers=headers)).status_code == 401, path
            assert (await at.client.get(path, headers=ADMIN)).status_code == 200, path
        assert (await at.client.post("/debug/explain", json=chat(), headers=CLIENT)).status_code == 401
        assert (await at.client.post("/debug/explain", json=chat(), headers=ADMIN)).status_code == 200
        assert (await at.client.post(CHAT, json=chat(), headers=ADMIN)).status_code == 401
        assert (await at.client.get("/metrics")).status_code == 200
        assert (await at.client.post("/admin/drain", headers=CLIENT)).status_code == 401
        assert (await at.client.post(f"/admin/endpoints/{name}/drain", headers=ADMIN)).status_code == 200
        assert (await at.client.post("/admin/endpoints/a%1bb/drain", headers=ADMIN)).status_code == 404
        assert (await at.client.post("/admin/reload", headers=ADMIN)).status_code == 400
    lines = [record.getMessage() for record in caplog.records if record.name == "kvrouter.audit"]
    assert lines == [
        "by unknown from 127.0.0.1: POST /admin/drain: refused (Unauthorized)",
        f"by ops from 127.0.0.1: POST /admin/endpoints/{name}/drain: done",
        "by ops from 127.0.0.1: POST /admin/endpoints/a\\x1bb/drain: no such endpoint",
        "by ops from 127.0.0.1: POST /admin/reload: refused",
    ]
    assert "root-key" not in caplog.text


async def test_metrics_are_behind_the_gate_too_by_setting() -> None:
    async with field(serve, server__protect_metrics=True, **KEYS) as at:
        assert (await at.client.get("/metrics")).status_code == 401
        assert (await at.client.get("/metrics", headers=ADMIN)).status_code == 200
        for path in ("/health", "/ready"):
            assert (await at.client.get(path)).status_code == 200


async def test_with_a_port_of_its_own_administration_leaves_the_main_one() -> None:
    async with (
        field(serve, server__admin_port=1) as at,
        httpx.AsyncClient(base_url=at.router.admin_url, trust_env=False) as admin,
    ):
        for path in (*INSIDE, "/metrics"):
            assert (await at.client.get(path)).status_code == 404, path
            assert (await admin.get(path)).status_code == 200, path
        for path in ("/admin/drain", "/debug/explain"):
            assert (await at.client.post(path, json=chat())).status_code == 404, path
        assert (await admin.post("/debug/explain", json=chat())).status_code == 200
        assert (await admin.post(CHAT, json=chat())).status_code == 404
        assert (await admin.get("/v1/models")).status_code == 404
        for path in ("/health", "/ready"):
            assert (await at.client.get(path)).status_code == (await admin.get(path)).status_code == 200
        assert (await admin.post("/admin/drain")).status_code == 200
        assert (await at.client.get("/ready")).status_code == 503
        assert (await at.chat()).status_code == 200


async def test_every_slot_is_back_after_a_storm_of_every_kind() -> None:
    async def mixed(call: Call) -> None:
        match call.number % 5:
            case 0:
                call.peer.reset()
            case 1:
                await call.answer({"error": {"message": "busy"}}, 503)
            case 2:
                await call.answer(completed())
            case 3:
                await call.hang()
            case _:
                await serve(call)

    async def one(number: int) -> None:
        body: dict[str, Any] = streamed("x" * number) if number % 2 else chat("x" * number)
        try:
            async with asyncio.timeout(0.1 if number % 5 == 0 else 20):
                await at.client.post(CHAT, json=body)
        except (TimeoutError, httpx.HTTPError):
            return

    async with field(mixed, mixed, upstream__first_byte_timeout_s=0.5, pool__unhealthy_after=1000) as at:
        await asyncio.gather(*map(one, range(60)))
        await at.at_rest(10)
        slots = (await at.client.get("/debug/slots")).json()
        assert slots["at_rest"], slots
        assert slots["leases"] == {}
        assert set(slots["in_use"].values()) == {0}
        assert all(task["running"] and not task["failures"] for task in slots["tasks"]), slots["tasks"]


async def test_what_is_in_use_is_shown_while_it_is() -> None:
    async def hangs(call: Call) -> None:
        await call.hang()

    async with field(hangs) as at:
        request = asyncio.create_task(at.client.post(CHAT, json=chat()))
        await until(lambda: at.calls == 1)
        slots = (await at.client.get("/debug/slots")).json()
        assert not slots["at_rest"]
        assert {"requests": 1, "admitted": 1, "upstream_busy": 1, "tokenizing": 0}.items() <= slots["in_use"].items()
        assert [lease["requests"] for lease in slots["leases"].values()] == [1]
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await at.at_rest()
        assert (await at.client.get("/debug/slots")).json()["at_rest"]


async def test_an_endpoint_drained_at_one_router_is_drained_at_all_and_stays_so_over_restarts() -> None:
    with RedisServer() as server:
        shared = {"index__backend": "redis", "redis__url": server.url}
        async with field(serve, serve, **shared) as one:
            specs = [{"url": engine.url} for engine in one.engines]
            first, second = (engine.url.removeprefix("http://") for engine in one.engines)
            async with running_router(specs, **shared) as other, client_of(other) as there:
                answer = await one.client.post(f"/admin/endpoints/{first}/drain")
                assert answer.json()["told_other_routers"] is True
                await until(lambda: not other.app.pool.usable(first), within_s=5)
                for number in range(6):
                    assert (await there.post(CHAT, json=chat(f"{number}"))).status_code == 200
                assert [len(engine.calls) for engine in one.engines] == [0, 6]
                assert (await there.post(f"/admin/endpoints/{second}/drain")).status_code == 200
                assert (await there.post(f"/admin/endpoints/{first}/resume")).status_code == 200
                here = one.router.app.pool
                await until(lambda: here.usable(first) and not here.usable(second), within_s=5)
            async with running_router(specs, **shared) as again:
                assert not again.app.pool.usable(second)
                assert again.app.pool.usable(first)


async def test_an_order_that_others_could_not_be_told_yet_says_so_and_holds_here() -> None:
    with RedisServer() as server:
        shared = {"index__backend": "redis", "redis__url": server.url, "redis__command_timeout_s": 0.2}
        async with field(serve, serve, **shared) as at:
            first = at.engines[0].url.removeprefix("http://")
            server.stop()
            answer = await at.client.post(f"/admin/endpoints/{first}/drain")
            assert (answer.status_code, answer.json()["told_other_routers"]) == (200, False)
            assert answer.json()["drained"] == [first]
            assert not at.router.app.pool.usable(first)
