"""Engines that listen on an IPv6 address: requests, KV events and hand-offs reach them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import prefill_and_decode

SPLIT = "always-disagg-pd-decider"
pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


async def test_a_prompt_is_handed_over_and_its_blocks_are_known_exactly() -> None:
    async with (
        prefill_and_decode(host="::1") as (prefill, decode),
        running_router(
            endpoints(prefill=prefill, decode=decode), scheduling__decider="always-disagg-pd-decider"
        ) as router,
        client_of(router) as client,
    ):
        assert prefill[0].url.startswith("http://[::1]:")
        body = {"model": "sim-model", "prompt": "a prompt of several blocks " * 20, "max_tokens": 4}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers["x-kvrouter-prefill-endpoint"] == prefill[0].url.removeprefix("http://")

        async def exact() -> bool:
            shown = (await client.get("/debug/endpoints")).json()["endpoints"]
            return all(entry["index"] == "exact" and sum(entry["index_blocks"].values()) > 0 for entry in shown)

        async with asyncio.timeout(60):
            while not await exact():
                await asyncio.sleep(0.05)
