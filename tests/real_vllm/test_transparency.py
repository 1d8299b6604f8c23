"""Through the router a client gets what the engine says: same status, content type and body, but for ids and times."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from tests.real_vllm.corpus import Case, corpus
from tests.real_vllm.engines import Engine
from tests.real_vllm.routers import client_of, router_over

# Differ from one request to the next on the engine itself.
_VOLATILE = frozenset(
    {"id", "created", "created_at", "completed_at", "cached_tokens", "created_cache_tokens", "request_id", "call_id"}
    | {"item_id", "cache_read_input_tokens", "cache_creation_input_tokens", "metrics"}
)


async def test_the_router_says_what_the_engine_says(aggregated: list[Engine], note: Callable[[str], None]) -> None:
    engine = aggregated[0]
    differing = []
    cases = corpus()
    async with (
        router_over([engine]) as router,
        client_of(router) as through,
        httpx.AsyncClient(base_url=engine.url, timeout=180, trust_env=False) as direct,
    ):
        for case in cases:
            straight, routed = await ask(direct, case), await ask(through, case)
            if straight != routed:
                differing.append(f"{case.name}:\n  engine {straight}\n  router {routed}")
    refused = sum(case.name.startswith("refused") for case in cases)
    note(f"{len(cases)} requests, {refused} of them refused: {len(cases) - len(differing)} alike through the router")
    assert len(cases) >= 120
    assert not differing, "\n".join(differing)


async def ask(client: httpx.AsyncClient, case: Case) -> tuple[int, str, Any]:
    headers = {"content-type": case.content_type} if case.method == "POST" else {}
    answer = await client.request(case.method, case.path, content=case.content, headers=headers)
    kind = answer.headers.get("content-type", "")
    return answer.status_code, kind, events(answer.text) if "event-stream" in kind else lasting(answer.text)


def events(text: str) -> list[Any]:
    """Each line of each event."""
    return [(line.partition(":")[0], lasting(line.partition(":")[2])) for line in text.splitlines() if line]


def lasting(text: str) -> Any:
    try:
        return _without_volatile(json.loads(text))
    except ValueError:
        return text.strip()


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(item) for item in value]
    return value
