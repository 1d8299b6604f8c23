"""A pool with no engine: who asks waits for one, in order, and none is lost; an engine that never comes up is not piled
upon."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.process import ServedRouter, serving

ENGINE = ("-m", "loadtest.demo.leash", "loadtest.simulator", "--port", "{port}", "--role", "{role}", "--speed", "20")
HANGS = ("-c", "import sys; sys.stdin.read()", "{port}")
pytestmark = pytest.mark.timeout(240)


def capacity(folder: Path, command: tuple[str, ...], startup_s: float, **more: Any) -> dict[str, Any]:
    variants = folder / "variants.json"
    variants.write_text(json.dumps({"variants": [{"name": "small", "startup_s": startup_s}]}))
    return {
        "planner": True,
        "actuator": "local",
        "local_command": [sys.executable, *command],
        "variants_file": str(variants),
        "form": "aggregated",
        "interval_s": 1,
        "min_engines": 0,
        **more,
    }


async def asked(client: httpx.AsyncClient, number: int, ends: list[int]) -> httpx.Response:
    body = {"model": "sim-model", "prompt": f"Request number {number}", "max_tokens": 4, "stream": number % 2 == 0}
    answer = await client.post("/v1/completions", json=body, timeout=120)
    ends.append(number)
    return answer


async def plan(served: ServedRouter) -> dict[str, Any] | None:
    shown = (await served.client.get("/debug/plan")).json()
    # Before the first engine there is a pool without a name, and none while that engine has not said what it serves.
    return next((dict(each) for each in shown["plans"] if each["pool"] == "sim-model"), None)


async def test_requests_wait_for_the_first_engine_and_later_ones_bring_it_back(tmp_path: Path) -> None:
    settings = capacity(tmp_path, ENGINE, 20.0, idle_s=4, hold_s=100)
    async with serving(tmp_path / "kvrouter.yaml", (), capacity=settings) as served:
        for crowd in (8, 3):
            ends: list[int] = []
            began = time.monotonic()
            answers = await asyncio.gather(*(asked(served.client, number, ends) for number in range(crowd)))
            assert [answer.status_code for answer in answers] == [200] * crowd, served.log
            assert all("[DONE]" in answer.text for answer in answers[::2])
            assert time.monotonic() - began < 100.0
            assert (await served.client.get("/debug/slots")).status_code == 200
            # Idle for long enough, the pool goes to zero again, and says why.
            async with asyncio.timeout(60):
                while not (shown := await plan(served)) or shown["present"] or shown["reason"] != "idle":
                    await asyncio.sleep(0.2)
        metrics = (await served.client.get("/metrics")).text
    assert 'kvrouter_plan_actions_total{action="wake"' in metrics
    assert 'kvrouter_plan_actions_total{action="zero"' in metrics
    assert "is gone" in served.log


async def test_an_engine_that_hangs_while_it_starts_is_ended_before_another_is_tried(tmp_path: Path) -> None:
    settings = capacity(tmp_path, HANGS, 2.0, hold_s=14, max_held=4)
    async with serving(tmp_path / "kvrouter.yaml", (), capacity=settings) as served:
        began = time.monotonic()
        answer = await asked(served.client, 1, [])
        waited = time.monotonic() - began
        assert answer.status_code == 503
        assert "capacity.hold_s" in answer.json()["error"]["message"]
        assert waited >= 13.0
        # Five seconds (twice its start-up time and one) are given to each.
        started = served.log.count(" starts at ")
        assert 2 <= started <= waited / 5.0 + 1.0
        assert served.log.count("did not come up: it is ended") >= started - 1
