"""Engines as `router.check` sees them: answers by method and path, behind an httpx transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

Handler = Callable[[httpx.Request], tuple[int, Any]]
"""A request to (status, JSON value, or text when it is a str)."""

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="1000"} 1.0
"""


class FakeEngines(httpx.AsyncBaseTransport):
    """Host name -> (path -> handler). A host without an entry refuses connections; a path without one is 404."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Handler]]) -> None:
        self._hosts = hosts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        paths = self._hosts.get(request.url.host)
        if paths is None:
            raise httpx.ConnectError("refused") from ConnectionRefusedError(111, "Connection refused")
        await request.aread()
        handler = paths.get(request.url.path)
        status, value = (404, {"detail": "Not Found"}) if handler is None else handler(request)
        content = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return httpx.Response(status, content=content)


def answers(value: Any, status: int = 200) -> Handler:
    return lambda request: (status, value)


def healthy(model: str = "m", /, **changed: Handler) -> dict[str, Handler]:
    """A whole vLLM without KV events; `changed` by path without slashes (``v1_models`` for ``/v1/models``)."""
    engine: dict[str, Handler] = {
        "/health": answers(""),
        "/version": answers({"version": "0.32.0"}),
        "/v1/models": answers({"object": "list", "data": [{"id": model, "object": "model", "root": model}]}),
        "/metrics": answers(METRICS),
    }
    names = {path.strip("/").replace("/", "_"): path for path in (*engine, "/kv_event_sources", "/tokenize")}
    return engine | {names[name]: handler for name, handler in changed.items()}
