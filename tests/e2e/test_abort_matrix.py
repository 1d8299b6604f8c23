"""A client that leaves, at each stage of a request, aggregated and disaggregated, streamed and not, with every option
on: the engines' work stops within a second and every slot comes back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio

from loadtest.redis_server import RedisServer, server_binaries
from loadtest.simulator import EngineConfig, RunningEngine, start_engines
from loadtest.simulator.ledger import Entry, Ledger
from loadtest.simulator.settings import Faults, Role
from tests.support.field import CHAT, until
from tests.support.rawclient import connected, dumped, post
from tests.support.router import RunningRouter, endpoints, running_router
from tests.support.simulator import close, tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "a long prompt that fills several blocks " * 12
WITHIN_S = 1.0


class Scene(NamedTuple):
    router: RunningRouter
    prefill: list[RunningEngine]
    """Empty: every engine serves whole requests."""
    decode: list[RunningEngine]

    @property
    def engines(self) -> list[RunningEngine]:
        return self.prefill + self.decode

    def hurt(self, engines: list[RunningEngine], **faults: Any) -> None:
        for engine in engines:
            engine.engine.set_faults(msgspec.convert(faults, Faults))

    def at_work(self, engines: list[RunningEngine], path: str = CHAT) -> int:
        """Requests that these engines have not ended."""
        return sum(not (entry.done or entry.cut or entry.aborted) for entry in self._entries(engines, path))

    def asked(self, engines: list[RunningEngine]) -> int:
        return len(self._entries(engines, CHAT))

    def last_abort(self) -> float:
        return max((entry.aborted_at or 0.0 for entry in self._entries(self.engines, "/")), default=0.0)

    @staticmethod
    def _entries(engines: list[RunningEngine], path: str) -> list[Entry]:
        recent = (entry for engine in engines for entry in engine.engine.ledger.recent(1000))
        return [entry for entry in recent if entry.path.startswith(path)]

    def generating(self) -> list[int]:
        """Tokens so far of each answer that is being made."""
        cores = [driver.core for engine in self.decode for driver in engine.engine.ranks]
        return [request.generated for core in cores for request in core.running if request.generated > 1]

    @property
    def at_rest(self) -> bool:
        app = self.router.app
        idle = app.inflight.snapshot() == {} and app.lifecycle.active == 0
        return idle and not any(each.engine.in_flight for each in self.engines) and not self.at_work(self.engines, "/")


@asynccontextmanager
async def scene(redis: RedisServer, *, split: bool) -> AsyncIterator[Scene]:
    roles: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode") if split else ("both", "both")
    # Answers take as long as a test may wait; nothing ends by itself.
    configs = [EngineConfig(profile="demo", role=role, kv_events=False) for role in roles]
    running = await start_engines(configs, tokenizer=tokenizer())
    prefill, decode = (running[:2], running[2:]) if split else ([], running)
    always = "always-disagg-pd-decider"
    options: dict[str, Any] = {
        "index__backend": "redis",
        "redis__url": redis.url,
        "redis__namespace": f"abort{split:d}",
        "usage__inject_stream_usage": True,
        "server__access_log": True,
        "server__cors_origins": ["*"],
        "tokenization__default": None,
        "retries__backoff_ms": 20_000.0,
        "retries__backoff_max_ms": 20_000.0,
        "retries__max_attempts": 4,
        "retries__continue_streams": True,
        "flow_control__max_requests_per_endpoint": 1,
        "scheduling__plugins": [{"type": always}],
        "scheduling__decider": always,
    }
    specs = endpoints(prefill=prefill, decode=decode) if split else endpoints(both=decode)
    try:
        async with running_router(specs, **options) as router:
            yield Scene(router, prefill, decode)
    finally:
        await close(running)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scenes() -> AsyncIterator[dict[str, Scene]]:
    if not server_binaries():
        pytest.skip("no Redis or Valkey server is installed")
    with RedisServer() as redis:
        async with scene(redis, split=False) as whole, scene(redis, split=True) as split:
            yield {"aggregated": whole, "disaggregated": split}


class Stage(NamedTuple):
    """`hurts` makes the engines stay in it, `reached` says that the request is there."""

    name: str
    hurts: Callable[[Scene], None]
    reached: Callable[[Scene], Any]
    shapes: tuple[str, ...] = ("aggregated", "disaggregated")
    streams: tuple[bool, ...] = (True, False)


def _nobody(_at: Scene) -> None: ...


def _idle_after(at: Scene, engines: list[RunningEngine]) -> bool:
    """These were asked, and nothing is under way anywhere: the router pauses before it asks another."""
    return at.asked(engines) > 0 and not at.at_work(engines) and at.router.app.inflight.snapshot() == {}


STAGES = (
    Stage(
        "tokenization",
        lambda at: at.hurt(at.engines, paths=["/tokenize"], hang=True),
        lambda at: at.at_work(at.engines, "/tokenize"),
    ),
    Stage(
        "prefill-leg",
        lambda at: at.hurt(at.prefill, paths=["/v1/"], delay_head_s=60),
        lambda at: at.at_work(at.prefill),
        ("disaggregated",),
    ),
    Stage(
        "before-another-prefiller",
        lambda at: at.hurt(at.prefill, paths=["/v1/"], error_rate=1.0, error_status=502),
        lambda at: _idle_after(at, at.prefill),
        ("disaggregated",),
    ),
    Stage(
        "between-the-legs",
        lambda at: at.hurt(at.decode, paths=["/v1/"], delay_head_s=60),
        lambda at: at.asked(at.prefill) and not at.at_work(at.prefill),
        ("disaggregated",),
    ),
    Stage(
        "decode-leg-before-its-head",
        lambda at: at.hurt(at.decode, paths=["/v1/"], delay_head_s=60),
        lambda at: at.at_work(at.decode),
    ),
    Stage(
        "decode-leg-after-its-head",
        lambda at: at.hurt(at.decode, paths=["/v1/"], delay_first_byte_s=60),
        lambda at: at.at_work(at.decode),
    ),
    Stage(
        "before-another-decoder",
        lambda at: at.hurt(at.decode, paths=["/v1/"], error_rate=1.0, error_status=502),
        lambda at: _idle_after(at, at.decode),
    ),
    # It has begun already, and another engine would go on with it.
    Stage(
        "before-another-goes-on",
        lambda at: at.hurt(at.decode, paths=["/v1/"], cut_after_chunks=4),
        lambda at: _idle_after(at, at.decode),
        streams=(True,),
    ),
    # Streamed, tokens flow; not streamed, the engine works and nothing is to be seen of it.
    Stage("generation", _nobody, lambda at: at.generating()),
)


def asking(text: str, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "sim-model",
        "messages": [{"role": "user", "content": f"{text} {LONG}"}],
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": stream,
    }


CASES = [
    pytest.param(shape, stage, stream, id=f"{shape}-{stage.name}-{'streamed' if stream else 'whole'}")
    for stage in STAGES
    for shape in stage.shapes
    for stream in stage.streams
]


@pytest.mark.parametrize(("shape", "stage", "stream"), CASES)
async def test_a_client_that_leaves_stops_the_work(
    scenes: dict[str, Scene], shape: str, stage: Stage, stream: bool
) -> None:
    at = scenes[shape]
    for engine in at.engines:
        engine.engine.ledger = Ledger()
    stage.hurts(at)
    try:
        async with connected(at.router) as client:
            await client.send(post(CHAT, dumped(asking(f"{stage.name} {stream}", stream=stream))))
            await until(lambda: stage.reached(at))
            asked, gone_at = at.asked(at.engines), time.time()
            client.reset()
        await until(lambda: at.at_rest)
        assert at.last_abort() - gone_at < WITHIN_S
        # Nothing begins for nobody, but for a leg that was on its way.
        assert at.asked(at.engines) - asked <= (1 if stage.name == "between-the-legs" else 0)
    finally:
        at.hurt(at.engines)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("shape", ["aggregated", "disaggregated"])
async def test_a_client_that_leaves_the_queue_is_sent_nowhere(
    scenes: dict[str, Scene], shape: str, stream: bool
) -> None:
    at = scenes[shape]
    for engine in at.engines:
        engine.engine.ledger = Ledger()
    gate = at.router.app.gate

    def generate(answers: int) -> bool:
        return len(at.generating()) == answers

    async with AsyncExitStack() as stack:
        for number in range(len(at.decode)):
            blocker = await stack.enter_async_context(connected(at.router))
            await blocker.send(post(CHAT, dumped(asking(f"blocker {number} {stream}", stream=True))))
            await until(partial(generate, number + 1))
        asked = at.asked(at.engines)
        async with connected(at.router) as client:
            await client.send(post(CHAT, dumped(asking(f"queued {stream}", stream=stream))))
            await until(lambda: gate.queued == 1)
            client.reset()
        await until(lambda: gate.queued == 0)
        assert at.asked(at.engines) == asked
    await until(lambda: at.at_rest)


@pytest.mark.parametrize("shape", ["aggregated", "disaggregated"])
async def test_a_client_that_leaves_before_its_body_is_complete_leaves_nothing(
    scenes: dict[str, Scene], shape: str
) -> None:
    at = scenes[shape]
    async with connected(at.router) as client:
        await client.send(post(CHAT, b'{"model": ', "content-length: 4000", framing=False))
        await until(lambda: at.router.app.lifecycle.active)
        client.reset()
    await until(lambda: at.at_rest)
