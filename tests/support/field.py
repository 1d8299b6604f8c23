"""What the field tests share: bodies, a router over stub engines, and what must hold when a storm is over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.router import RunningRouter, client_of, running_router
from tests.support.stub_engine import Script, StubEngine, stubs

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ESTIMATED = {"tokenization__default": None, "tokenization__remote": False}
"""Prompts are estimated: most of what is tested here does not depend on tokens, and loading a tokenizer takes time."""


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "stub", "messages": [{"role": "user", "content": text}], **more}


def streamed(text: str = "hello", **more: Any) -> dict[str, Any]:
    return chat(text, stream=True, **more)


class Field:
    """A router over stub engines and a client of it."""

    def __init__(self, router: RunningRouter, client: httpx.AsyncClient, engines: Sequence[StubEngine]) -> None:
        self.router = router
        self.client = client
        self.engines = list(engines)

    @property
    def engine(self) -> StubEngine:
        return self.engines[0]

    @property
    def calls(self) -> int:
        return sum(len(engine.calls) for engine in self.engines)

    async def chat(self, text: str = "hello", **more: Any) -> httpx.Response:
        return await self.client.post(CHAT, json=chat(text, **more))

    async def at_rest(self, within_s: float = 5.0) -> None:
        """Nothing is in flight, nothing is under way, no engine works for nobody."""
        await until(lambda: self.idle, within_s=within_s)

    @property
    def idle(self) -> bool:
        app = self.router.app
        return (
            app.inflight.snapshot() == {} and app.lifecycle.active == 0 and all(engine.over for engine in self.engines)
        )

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of `name` that have these labels."""
        total = 0.0
        for line in (await self.client.get("/metrics")).text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found is None or found[1] != name:
                continue
            if all(f'{key}="{value}"' in (found[2] or "") for key, value in labels.items()):
                total += float(found[3])
        return total


@asynccontextmanager
async def field(*scripts: Script | StubEngine, **flags: Any) -> AsyncIterator[Field]:
    """`scripts`: one for each engine of role both."""
    async with (
        stubs(*scripts) as engines,
        running_router([{"url": engine.url} for engine in engines], **{**ESTIMATED, **flags}) as router,
        client_of(router) as client,
    ):
        yield Field(router, client, engines)


@asynccontextmanager
async def pd_field(prefill: Sequence[Script], decode: Sequence[Script], **flags: Any) -> AsyncIterator[Field]:
    """Engines with roles, prefillers first; every prompt that can be split is."""
    chosen = {
        "scheduling__plugins": [{"type": "always-disagg-pd-decider"}],
        "scheduling__decider": "always-disagg-pd-decider",
        **ESTIMATED,
        **flags,
    }
    roles = ["prefill"] * len(prefill) + ["decode"] * len(decode)
    async with (
        stubs(*prefill, *decode) as engines,
        running_router(
            [{"url": engine.url, "role": role} for engine, role in zip(engines, roles, strict=True)], **chosen
        ) as router,
        client_of(router) as client,
    ):
        yield Field(router, client, engines)


async def until(condition: Callable[[], Any], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)
