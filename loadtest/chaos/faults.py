"""What is done to whom, and when: the faults of a chaos run, each with its end.

At most two of the six engines are hurt at one time, so that somebody could always have served a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx

from loadtest.chaos.cast import Actor, Cast, Engine

_HURT_AT_ONCE = 2
_BACK_WITHIN_S = 90.0
_LONG_LIFE = 5
"""Restarts of routers from one of the second router's to the next."""
Hurting = Callable[[httpx.AsyncClient, Engine, random.Random], Awaitable[None]]


async def kill(_client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
    engine.signal(signal.SIGKILL)
    await engine.gone()
    await asyncio.sleep(rng.uniform(1, 4))
    engine.launch()
    await engine.up("/health")


async def terminate(_client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
    """Its streams end with an abort in good form."""
    engine.signal(signal.SIGTERM)
    await engine.gone()
    await asyncio.sleep(rng.uniform(1, 4))
    engine.launch()
    await engine.up("/health")


async def freeze(_client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
    engine.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(3, 15))
    finally:
        engine.signal(signal.SIGCONT)


async def pause(client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
    await client.post(f"{engine.url}/pause", params={"mode": rng.choice(["keep", "abort"])})
    await asyncio.sleep(rng.uniform(3, 8))
    await client.post(f"{engine.url}/resume")


async def sleep(client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
    await client.post(f"{engine.url}/sleep")
    await asyncio.sleep(rng.uniform(3, 8))
    await client.post(f"{engine.url}/wake_up")


def misbehaving(least_s: float = 3.0, **faults: object) -> Hurting:
    async def hurt(client: httpx.AsyncClient, engine: Engine, rng: random.Random) -> None:
        await engine.misbehave(client, **faults)
        await asyncio.sleep(rng.uniform(least_s, least_s + 7.0))
        await engine.misbehave(client)

    return hurt


ENGINE_FAULTS: dict[str, Hurting] = {
    "killed": kill,
    "terminated": terminate,
    "frozen": freeze,
    "paused": pause,
    "asleep": sleep,
    # Long enough to be noticed: what hung stays hung when the engine is well again.
    "hanging": misbehaving(9.0, hang=True),
    "slow": misbehaving(slow_chunk_s=0.3, delay_head_s=1.0),
    "cutting": misbehaving(cut_after_chunks=5, cut_with="rst"),
    "cutting at once": misbehaving(cut_after_chunks=0),
    "ending early": misbehaving(cut_after_chunks=3, cut_with="fin"),
    "half failing": misbehaving(error_rate=0.5, error_status=502),
    "busy": misbehaving(busy=True),
}


class Chaos:
    def __init__(self, cast: Cast, client: httpx.AsyncClient, rng: random.Random) -> None:
        self._cast = cast
        self._client = client
        self._rng = rng
        self.hurt: dict[str, str] = {}
        """Name -> what is the matter with it now; for an engine until every router has taken it up again."""
        self.done: Counter[str] = Counter()
        self.broken: list[str] = []
        """What did not come back."""
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Hurts for that long, then waits until all is mended."""
        end = time.monotonic() + seconds
        lanes = [self._engines(end), self._redis(end), self._routers(end)]
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane)

    async def _engines(self, end: float) -> None:
        async with asyncio.TaskGroup() as group:
            # Every kind once before any twice.
            deck: list[str] = []
            while time.monotonic() < end:
                well = [engine for engine in self._cast.engines if engine.name not in self.hurt]
                if len(self._cast.engines) - len(well) < _HURT_AT_ONCE:
                    deck = deck or self._rng.sample(sorted(ENGINE_FAULTS), len(ENGINE_FAULTS))
                    engine, kind = self._rng.choice(well), deck.pop()
                    self.hurt[engine.name] = kind
                    group.create_task(self._hurt(engine, kind))
                await asyncio.sleep(self._rng.uniform(0.5, 2.5))

    async def _hurt(self, engine: Engine, kind: str) -> None:
        self.done[f"engine {kind}"] += 1
        with contextlib.suppress(httpx.HTTPError):
            await ENGINE_FAULTS[kind](self._client, engine, self._rng)
        await self._taken_up(engine, kind)
        del self.hurt[engine.name]

    async def _taken_up(self, engine: Engine, kind: str) -> None:
        deadline = time.monotonic() + _BACK_WITHIN_S
        while time.monotonic() < deadline:
            seen = [await self._health(router, engine) for router in self._cast.routers]
            if all(health in ("healthy", "router away") for health in seen):
                return
            await asyncio.sleep(0.25)
        self.broken.append(f"{engine.name} was {kind} and did not come back within {_BACK_WITHIN_S:g} s")

    async def _health(self, router: Actor, engine: Engine) -> str:
        if router.name in self.hurt:
            return "router away"
        try:
            shown = (await self._client.get(f"{router.url}/debug/endpoints")).json()
        except httpx.HTTPError:
            return "no answer"
        endpoints = shown if isinstance(shown, list) else shown["endpoints"]
        return next((str(each["health"]) for each in endpoints if each["id"] == engine.name), "absent")

    async def _redis(self, end: float) -> None:
        redis = self._cast.redis
        while time.monotonic() < end:
            await asyncio.sleep(self._rng.uniform(5, 10))
            kind = self._rng.choice(["killed", "frozen", "emptied"])
            self.done[f"redis {kind}"] += 1
            self.hurt["redis"] = kind
            if kind == "emptied":
                await asyncio.to_thread(redis.command, "FLUSHALL")
            elif kind == "frozen":
                redis.freeze()
                await asyncio.sleep(self._rng.uniform(2, 6))
                redis.thaw()
            else:
                await asyncio.to_thread(redis.stop)
                await asyncio.sleep(self._rng.uniform(1, 5))
                await asyncio.to_thread(redis.start)
            del self.hurt["redis"]

    async def _routers(self, end: float) -> None:
        """One again and again, the other every fifth time: it lives long enough for its memory to be judged."""
        often, seldom = self._cast.routers
        turn = 0
        while True:
            await asyncio.sleep(self._rng.uniform(12, 20))
            if time.monotonic() > end:
                return
            turn += 1
            router = often if turn % _LONG_LIFE else seldom
            self.done["router restarting"] += 1
            self.hurt[router.name] = "restarting"
            router.signal(signal.SIGTERM)
            await router.gone()
            router.launch()
            await router.up("/ready")
            del self.hurt[router.name]
