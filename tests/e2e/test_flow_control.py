"""Requests that wait in a real router before simulated engines that run two at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.e2e.test_serving import CHAT, chat, eventually, idle
from tests.support.router import RunningRouter, client_of, endpoints, running_router
from tests.support.simulator import engines

TINY: dict[str, Any] = {"max_num_seqs": 2, "profile": "demo"}
FLOW: dict[str, Any] = {
    "server__trusted_peers": ["127.0.0.1"],
    "flow_control__max_requests_per_endpoint": 2,
    "flow_control__holdback": 0,
    "flow_control__objectives": [{"name": "high", "priority": 5}, {"name": "shed", "priority": -1}],
    "flow_control__quantum_tokens": 32,
}


def said(tenant: str, objective: str | None = None) -> dict[str, str]:
    headers = {"x-llm-d-inference-fairness-id": tenant}
    return headers if objective is None else {**headers, "x-llm-d-inference-objective": objective}


async def flow(client: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await client.get("/debug/flow")).json())


def at_rest(router: RunningRouter) -> bool:
    return idle(router) and not router.app.gate.queued and not router.app.gate.held()


async def test_under_overload_priority_goes_first_tenants_share_by_weight_and_the_rest_is_told_when_to_come_again() -> (
    None
):
    ended: list[str] = []

    async def one(client: httpx.AsyncClient, number: int, tenant: str, objective: str | None = None) -> httpx.Response:
        body = chat(f"{number} question", max_tokens=10, ignore_eos=True)
        answer = await client.post(CHAT, json=body, headers=said(tenant, objective))
        if answer.status_code == 200:
            ended.append(objective or tenant)
        return answer

    async with (
        engines(2, **TINY, speed=3.0) as running,
        running_router(
            endpoints(running),
            flow_control__tenant_weights={"b": 3.0},
            flow_control__class_max_requests=40,
            **FLOW,
        ) as router,
        client_of(router) as client,
    ):
        long = chat("long", max_tokens=4000, ignore_eos=True)
        before = [asyncio.create_task(client.post(CHAT, json=long)) for _ in range(4)]
        await eventually(lambda: all(len(engine.engine.ranks[0].core.running) == 2 for engine in running))
        tasks = [asyncio.create_task(one(client, number, "ab"[number % 2])) for number in range(60)]
        await eventually(lambda: router.app.gate.queued + sum(task.done() for task in tasks) == 60, within_s=60.0)
        shown = await flow(client)
        assert {known["tenant"] for known in shown["classes"][0]["tenants"]} == {"a", "b"}
        assert all(endpoint["saturation"] >= 1 for endpoint in shown["endpoints"].values())
        tasks += [asyncio.create_task(one(client, number, "c", "high")) for number in range(100, 106)]
        await eventually(lambda: router.app.gate.waiting().get(5) is not None and router.app.gate.waiting()[5][0] == 6)
        for task in before:
            task.cancel()
        await asyncio.gather(*before, return_exceptions=True)
        answers = await asyncio.gather(*tasks)
        assert {answer.status_code for answer in answers} == {200, 429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
        assert all(answer.status_code == 200 for answer in answers[60:])
        assert max(number for number, who in enumerate(ended) if who == "high") < 12
        middle = [who for who in ended[:26] if who != "high"]
        assert middle.count("b") > middle.count("a")
        page = (await client.get("/metrics")).text
        assert 'kvrouter_flow_wait_seconds_count{outcome="dispatched",priority="5"}' in page
        assert 'kvrouter_flow_refused_total{priority="0",reason="full"}' in page
        assert 'kvrouter_flow_tenant_tokens_total{tenant="b"}' in page
        await eventually(lambda: at_rest(router))


async def test_a_client_that_leaves_while_it_waits_is_taken_out_and_nothing_of_it_reaches_an_engine() -> None:
    async with (
        engines(1, **TINY) as (engine,),
        running_router(endpoints([engine]), **FLOW) as router,
        client_of(router) as client,
    ):
        body = chat("long", max_tokens=4000, ignore_eos=True)
        running = [asyncio.create_task(client.post(CHAT, json=body, headers=said("a"))) for _ in range(2)]
        await eventually(lambda: len(engine.engine.ranks[0].core.running) == 2)
        waits = asyncio.create_task(client.post(CHAT, json=body, headers=said("a")))
        await eventually(lambda: router.app.gate.queued == 1)
        waits.cancel()
        await eventually(lambda: router.app.gate.queued == 0)
        for task in running:
            task.cancel()
        await asyncio.gather(waits, *running, return_exceptions=True)
        await eventually(lambda: at_rest(router))


async def test_a_pool_that_is_not_saturated_lets_everything_pass() -> None:
    async with (
        engines(2) as running,
        running_router(endpoints(running)) as router,
        client_of(router) as client,
    ):
        answers = await asyncio.gather(*(client.post(CHAT, json=chat(f"{number}")) for number in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert "kvrouter_flow_wait_seconds_count" not in (await client.get("/metrics")).text
