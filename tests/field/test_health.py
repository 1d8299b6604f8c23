"""Engines that are down, hang or come back, and the router's own end."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx

from tests.support.field import CHAT, ESTIMATED, chat, field, streamed, until
from tests.support.process import serving
from tests.support.router import client_of, running_router
from tests.support.stub_engine import DONE, Call, StubEngine, serve, token, tokens_in


async def test_hlt_01_the_models_are_listed_whoever_is_down() -> None:
    async with field(serve, serve, serve) as at:
        for engine in at.engines:
            await engine.close_listener()
            for _ in range(10):
                answer = await at.client.get("/v1/models")
                assert answer.status_code == 200
                assert [card["id"] for card in answer.json()["data"]] == ["stub"]
            await engine.reopen_listener()


async def test_hlt_02_the_router_starts_beside_a_dead_engine_and_takes_it_up_when_it_lives() -> None:
    async with StubEngine() as dead, StubEngine() as alive:
        await dead.close_listener()
        specs = [{"url": dead.url}, {"url": alive.url}]
        async with (
            running_router(specs, pool__probe_interval_s=0.1, **ESTIMATED) as router,
            client_of(router) as client,
        ):
            for number in range(6):
                assert (await client.post(CHAT, json=chat(f"q {number}"))).status_code == 200
            await dead.reopen_listener()
            await until(lambda: router.app.pool.snapshot()[0].health.value == "healthy")
            answers = await asyncio.gather(*(client.post(CHAT, json=chat(f"later {number}")) for number in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            assert dead.calls


async def test_hlt_03_running_streams_end_whole_before_the_process_does(tmp_path: Path) -> None:
    async def three_seconds(call: Call) -> None:
        await call.stream(*(token(number) for number in range(30)), DONE, pause_s=0.1)

    async with (
        StubEngine(three_seconds) as engine,
        serving(tmp_path / "kv.yaml", [engine.url], {"settle_s": 0.3, "shutdown_grace_s": 30}) as served,
    ):
        asking = [asyncio.create_task(served.client.post(CHAT, json=streamed(f"q {n}"))) for n in range(10)]
        await until(lambda: len(engine.calls) == 10, within_s=60)
        served.process.send_signal(signal.SIGTERM)
        # Readiness turns red while the router still accepts.
        async with asyncio.timeout(30):
            while (await served.client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        answers = await asyncio.gather(*asking)
        assert [tokens_in(answer.content) for answer in answers] == [list(range(30))] * 10
        assert all(answer.content.endswith(DONE) for answer in answers)
        async with asyncio.timeout(60):
            assert await served.process.wait() == 0
    assert "Traceback" not in served.log


async def test_hlt_04_a_health_check_that_hangs_delays_nobody_elses() -> None:
    flags = {"pool__probe_interval_s": 0.2, "pool__probe_timeout_s": 30.0, "pool__unhealthy_after": 1}
    hanging, dies = StubEngine(), StubEngine()
    async with field(hanging, dies, serve, **flags) as at:
        hanging.health_hangs = True
        await asyncio.sleep(0.3)
        await dies.close_listener()
        # Far sooner than the hanging check's own time limit.
        await until(lambda: at.router.app.pool.snapshot()[1].health.value == "unhealthy", within_s=20)
        calls = len(dies.calls)
        for number in range(10):
            assert (await at.chat(f"q {number}")).status_code == 200
        assert len(dies.calls) == calls


async def test_dsc_01_every_listed_name_can_be_used() -> None:
    engine = StubEngine(models=["served-x", "alias-of-x"])
    async with field(engine) as at:
        listed = [card["id"] for card in (await at.client.get("/v1/models")).json()["data"]]
        assert listed == ["served-x", "alias-of-x"]
        for model in listed:
            assert (await at.client.post(CHAT, json={**chat(), "model": model})).status_code == 200
        assert [json.loads(call.body)["model"] for call in engine.calls] == listed


async def test_dsc_05_ranks_are_those_of_the_chosen_engines_own_group() -> None:
    async with StubEngine() as prefill, StubEngine() as decode:
        specs = [
            {"url": prefill.url, "role": "prefill", "data_parallel_size": 2},
            {"url": decode.url, "role": "decode", "data_parallel_size": 4},
        ]
        # In turn: on a busy machine one rank may be learnt to be slower, and then gets nothing.
        turn = {"scorers": [], "picker": "round-robin-picker"}
        always = {
            "scheduling__plugins": [{"type": "always-disagg-pd-decider"}],
            "scheduling__decider": "always-disagg-pd-decider",
            "scheduling__profiles": {"decode": turn, "prefill": turn},
            **ESTIMATED,
        }
        async with running_router(specs, **always) as router, client_of(router) as client:
            for number in range(40):
                answer = await client.post(CHAT, json=chat(f"{number} long " * 60))
                assert answer.status_code == 200
        for engine, ranks in ((prefill, 2), (decode, 4)):
            sent = [call.values("x-data-parallel-rank") for call in engine.calls]
            assert {len(values) for values in sent} == {1}
            assert {int(values[0]) for values in sent} == set(range(ranks))


async def test_mwk_05_the_set_of_engines_changes_while_requests_run() -> None:
    async with StubEngine() as one, StubEngine() as two, StubEngine() as three:
        specs = [{"url": engine.url} for engine in (one, two, three)]
        async with running_router(specs, **ESTIMATED) as router, client_of(router) as client:
            done = asyncio.Event()

            async def churn() -> None:
                pool = router.app.pool
                full = [record.spec for name in pool.upstream_ids() if (record := pool.record(name)) is not None]
                assert len(full) == 3
                turn = 0
                while not done.is_set():
                    turn += 1
                    router.app.pool.set_endpoints(full[: 1 + turn % 3])
                    if turn % 4 == 0:
                        await two.close_listener()
                        await asyncio.sleep(0.02)
                        await two.reopen_listener()
                    await asyncio.sleep(0.02)

            churning = asyncio.create_task(churn())
            statuses: set[int] = set()
            for batch in range(10):
                bodies = [chat(f"q {batch} {number}", stream=number % 2 == 0) for number in range(20)]
                asking = (client.post(CHAT, json=body) for body in bodies)
                for outcome in await asyncio.gather(*asking, return_exceptions=True):
                    if isinstance(outcome, httpx.Response):
                        statuses.add(outcome.status_code)
                    else:
                        # A stream whose engine went away under it is visibly cut.
                        assert isinstance(outcome, httpx.RemoteProtocolError)
                assert (await client.get("/metrics")).status_code == 200
                assert (await client.get("/debug/endpoints")).status_code == 200
            done.set()
            await churning
            assert statuses <= {200, 502, 503}
            assert 200 in statuses
            await until(lambda: router.app.inflight.snapshot() == {})
