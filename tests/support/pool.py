"""Stand-ins for the pool's surroundings: time that only moves when told, and engines that answer control calls."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Mapping

from router.core import Endpoint, EndpointState, Health
from router.pool.calls import CallError
from router.pool.facts import KvEventSource
from router.pool.observers import PoolObserver
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec


class VirtualTime:
    """A clock and a sleep. `advance` moves the time and runs whoever wakes up, in order, until all wait again."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        wakes = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), wakes))
        await wakes

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wakes = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            if not wakes.done():
                wakes.set_result(None)
            await self.settle()
        self.now = end

    async def settle(self) -> None:
        """Lets everything run that can run without time passing."""
        for _ in range(50):
            await asyncio.sleep(0)


class FakeEngine:
    """One engine's control answers: path -> text, status of a refusal, or None to hang until let go."""

    def __init__(
        self,
        *,
        models: tuple[str, ...] = ("m",),
        metrics: str | None = None,
        sources: Mapping[str, object] | None = None,
        version: str = "0.32.0",
    ) -> None:
        self.answers: dict[str, str | int | None] = {
            "/health": "",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": name, "root": name} for name in models]}),
            "/version": json.dumps({"version": version}),
            "/metrics": metrics if metrics is not None else page(),
            "/kv_event_sources": json.dumps(sources) if sources is not None else 404,
        }
        self.down: str | None = None
        """A reason for which every call fails."""
        self.calls: list[str] = []
        self.keys: set[str | None] = set()

    def answers_models(self, *models: str) -> None:
        self.answers["/v1/models"] = json.dumps({"data": [{"id": name} for name in models]})


class FakeCalls:
    """Implements `router.pool.calls.ControlCalls` over fake engines by URL; an unknown URL refuses connections."""

    def __init__(self, engines: Mapping[str, FakeEngine], time: VirtualTime) -> None:
        self.engines = dict(engines)
        self.delay_s = 0.0
        """How long every answer takes."""
        self._time = time

    async def get_text(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> str:
        engine = self.engines.get(endpoint.url)
        if engine is None:
            raise CallError("refused")
        engine.calls.append(path)
        engine.keys.add(endpoint.api_key)
        if self.delay_s:
            await self._time.sleep(self.delay_s)
        if engine.down is not None:
            raise CallError(engine.down)
        answer = engine.answers.get(path, 404)
        if answer is None:
            await self._time.sleep(timeout_s)
            raise CallError("timeout")
        if isinstance(answer, int):
            raise CallError(f"status {answer}", status=answer)
        return answer


def page(
    *,
    running: float = 0,
    waiting: float = 0,
    usage: float = 0,
    start: float | None = 1.7e9,
    engines: int = 1,
    first_engine: int = 0,
    awake: int = 1,
) -> str:
    """A small page in vLLM's names; rank r runs `running` + r requests."""
    lines = [] if start is None else [f"process_start_time_seconds {start}"]
    for rank in range(first_engine, first_engine + engines):
        labels = f'engine="{rank}",model_name="m"'
        lines += [
            f"vllm:num_requests_running{{{labels}}} {running + rank - first_engine}",
            f"vllm:num_requests_waiting{{{labels}}} {waiting}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {usage}",
            f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {awake}',
            f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="100"}} 1.0',
        ]
    return "\n".join(lines) + "\n"


def event_sources(*ranks: int, port: int = 5557, topic: str = "kv@m") -> dict[str, object]:
    return {
        str(rank): {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://*:{port + rank}",
            "replay_endpoint": f"tcp://*:{port + 1000 + rank}",
            "topic": topic,
        }
        for rank in ranks
    }


class Recorder(PoolObserver):
    """Writes down what it is told, one word and a name each."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def take(self) -> list[tuple[str, str]]:
        told, self.told = self.told, []
        return told

    def upstream_added(self, upstream_id: str) -> None:
        self.told.append(("watch", upstream_id))

    def upstream_removed(self, upstream_id: str) -> None:
        self.told.append(("unwatch", upstream_id))

    def added(self, state: EndpointState) -> None:
        self.told.append(("added", state.endpoint.id))

    def removed(self, endpoint: Endpoint) -> None:
        self.told.append(("removed", endpoint.id))

    def restarted(self, endpoint: Endpoint) -> None:
        self.told.append(("restarted", endpoint.id))

    def health_changed(self, endpoint: Endpoint, old: Health, new: Health) -> None:
        self.told.append((f"{old.value} -> {new.value}", endpoint.id))

    def kv_source_changed(self, endpoint: Endpoint, source: KvEventSource | None) -> None:
        self.told.append(("source " + ("none" if source is None else source.endpoint), endpoint.id))


def pool_of(*urls: str) -> Pool:
    pool = Pool()
    pool.set_endpoints([EndpointSpec(url=url) for url in urls])
    return pool
