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
    | {"item_id", "cache_read_input_tokens", "cache_creation_input_tokens", "metrics", "sequence_number"}
)
# What arrives in pieces; how many tokens make a piece is a matter of time.
_PIECES = frozenset({"text", "content", "arguments", "delta", "partial_json", "tokens", "token"})


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
            if case.answered_by_router:
                straight, routed = straight[:2], own(*routed)
            if straight != routed:
                differing.append(f"{case.name}:\n  engine {straight}\n  router {routed}")
    refused = sum(case.refused for case in cases)
    note(f"{len(cases)} requests, {refused} of them refused: {len(cases) - len(differing)} alike through the router")
    assert len(cases) >= 120
    assert not differing, "\n".join(differing)


async def ask(client: httpx.AsyncClient, case: Case) -> tuple[Any, ...]:
    headers = {"content-type": case.content_type} if case.method == "POST" else {}
    answer = await client.request(case.method, case.path, content=case.content, headers=headers)
    kind = answer.headers.get("content-type", "")
    return answer.status_code, kind, events(answer.text) if "event-stream" in kind else lasting(answer.text)


def own(status: int, kind: str, said: Any) -> tuple[Any, ...]:
    """A refusal of the router's own: in an engine's words no more, but in its shape."""
    assert set(said) == {"error"}
    assert set(said["error"]) == {"message", "type", "param", "code"}
    return status, kind


def events(text: str) -> dict[str, Any]:
    """A stream as what its pieces make together, member by member, and its kinds of events in their order."""
    found: dict[str, Any] = {"events": []}
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if name == "data" and value.startswith("{"):
            said = json.loads(value)
            _fold(said, said.get("type", ""), found)
        elif line and (not found["events"] or found["events"][-1] != line):
            found["events"].append(line)
    return found


def _fold(value: Any, path: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _VOLATILE:
                _fold(item, f"{path}.{key}", into)
    elif isinstance(value, list):
        for item in value:
            index = item.get("index", "") if isinstance(item, dict) else ""
            _fold(item, f"{path}[{index}]", into)
    elif isinstance(value, str) and path.rpartition(".")[2].rstrip("[]") in _PIECES:
        into[path] = into.get(path, "") + value
    elif isinstance(value, float):
        into[path] = round(value, 3)
    elif value is not None:
        into[path] = value


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
    return round(value, 3) if isinstance(value, float) else value
