"""Simulated engines for tests: started in-process on free ports, closed when the test ends.

async with engines(2, kv_events=False) as (first, second):
    ...  # first.url, first.engine, first.kill()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import httpx
import msgspec

from loadtest.simulator import TOKENIZER_PATH, EngineConfig, RunningEngine, start_engines
from loadtest.simulator.text import SimTokenizer

FAST = EngineConfig(profile="instant")
"""Almost no time passes; caching, queueing and hand-offs are as always."""


@cache
def tokenizer() -> SimTokenizer:
    """The simulator's own tokenizer, loaded once for all tests."""
    return SimTokenizer.load(TOKENIZER_PATH)


def http(url: str = "", **options: Any) -> httpx.AsyncClient:
    """A client for plain HTTP; without certificates to load it is made ten times faster."""
    return httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **options)


@asynccontextmanager
async def engines(*configs: EngineConfig | int, **changes: Any) -> AsyncIterator[list[RunningEngine]]:
    """The engines of these configurations; a number n stands for n fast ones. `changes` apply to all of them."""
    wanted: list[EngineConfig] = []
    for config in configs or (1,):
        wanted += [FAST] * config if isinstance(config, int) else [config]
    running = await start_engines(
        [msgspec.structs.replace(config, **changes) for config in wanted], tokenizer=tokenizer()
    )
    try:
        yield running
    finally:
        await close(running)


@asynccontextmanager
async def prefill_and_decode(
    prefill: int = 1, decode: int = 1, **changes: Any
) -> AsyncIterator[tuple[list[RunningEngine], list[RunningEngine]]]:
    """Fast engines with roles; hand-offs between them take no time to speak of."""
    base = msgspec.structs.replace(FAST, transfer_base_ms=0.1, transfer_ms_per_token=0.0, transfer_failure_s=0.1)
    roles = ["prefill"] * prefill + ["decode"] * decode
    configs = [msgspec.structs.replace(base, role=role, **changes) for role in roles]
    running = await start_engines(configs, tokenizer=tokenizer())
    try:
        yield running[:prefill], running[prefill:]
    finally:
        await close(running)


async def close(running: Sequence[RunningEngine]) -> None:
    for engine in running:
        await engine.aclose()
