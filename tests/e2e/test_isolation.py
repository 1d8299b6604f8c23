"""Tenants and the engines' prefix cache."""

from __future__ import annotations

from typing import Any

from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines

PROMPT = "a long beginning that both tenants send " * 20
KEYS = [{"key": "one-key", "name": "one"}, {"key": "other-key", "name": "other"}]


async def cached_by_turn(**settings: Any) -> list[int]:
    """Tokens that the engine had cached: for the first tenant, for the other one, for the first again."""
    found = []
    async with (
        engines(1) as running,
        running_router(endpoints(running), server__api_keys=KEYS, **settings) as router,
        client_of(router) as client,
    ):
        for key in ("one-key", "other-key", "one-key"):
            body = {"model": "sim-model", "prompt": PROMPT, "max_tokens": 1}
            answer = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            details = answer.json()["usage"]["prompt_tokens_details"]
            found.append(details["cached_tokens"] if details else 0)
    return found


async def test_tenants_find_each_others_prefixes_cached() -> None:
    first, other, _ = await cached_by_turn()
    assert first == 0
    assert other > 0


async def test_with_a_salt_secret_they_do_not_and_each_finds_its_own() -> None:
    first, other, again = await cached_by_turn(server__tenant_salt_secret="a secret of the routers")
    assert first == other == 0
    assert again > 0
