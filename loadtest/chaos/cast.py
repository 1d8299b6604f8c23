"""Who takes part in a chaos run: engines, routers and a Redis, each a process of its own to be hurt and mended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtest.cluster import answers
from loadtest.demo.children import Child, ChildFailed, plain_environment
from loadtest.redis_server import RedisServer
from loadtest.simulator import TOKENIZER_PATH

MODEL = "sim-model"
_START_S = 90.0
_STOP_S = 30.0


class Actor:
    """One process of ours that listens on one port."""

    def __init__(self, name: str, port: int, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.port = port
        self._arguments = arguments
        self._folder = folder
        self._child: Child | None = None
        self.starts = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ChildFailed(f"{self.name} does not run")
        return self._child.pid

    def launch(self) -> None:
        self.starts += 1
        self._child = Child(f"{self.name}-{self.starts}", self._arguments, plain_environment(), self._folder)

    async def up(self, path: str) -> None:
        """Waits until it answers 200 there. Raises `ChildFailed`."""
        deadline = time.monotonic() + _START_S
        while not await asyncio.to_thread(answers, self.url + path):
            if self._child is not None:
                self._child.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self.name} did not come up within {_START_S:g} s")
            await asyncio.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def gone(self) -> None:
        """Waits until a process that was told to end has ended; after `_STOP_S` the hard way."""
        if self._child is not None:
            await asyncio.to_thread(self._child.stop, _STOP_S)
            self._child = None

    def kill(self) -> None:
        if self._child is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)

    def resident_bytes(self) -> int | None:
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, ChildFailed):
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Engine(Actor):
    def __init__(self, role: str, number: int, port: int, speed: float, folder: Path) -> None:
        arguments = ["router", "sim", f"--port={port}", f"--role={role}", f"--speed={speed}", "--seed=1"]
        super().__init__(f"{role}{number}", port, arguments, folder)
        self.role = role

    async def misbehave(self, client: httpx.AsyncClient, **faults: Any) -> None:
        """Replaces its faults; none given: none."""
        await client.post(f"{self.url}/sim/faults", json=faults)


class Cast:
    """All of them. `start` and `stop` frame the run."""

    def __init__(self, port: int, folder: Path, *, speed: float) -> None:
        roles = ("decode", "decode", "decode", "prefill", "prefill", "both")
        self.engines = [Engine(role, number, port + number, speed, folder) for number, role in enumerate(roles)]
        self.redis = RedisServer()
        first = port + len(roles)
        self.routers = []
        for number, continues in enumerate((False, True)):
            config = folder / f"router{number}.yaml"
            config.write_text(yaml.safe_dump(self._settings(port, continues)), encoding="utf-8")
            mine = first + number
            self.routers.append(Actor(f"router{number}", mine, _serve(config, mine), folder))

    def _settings(self, port: int, continues: bool) -> dict[str, Any]:
        """`continues`: broken streams are gone on with."""
        always = "always-disagg-pd-decider"
        return {
            "endpoints": [{"url": engine.url, "role": engine.role, "name": engine.name} for engine in self.engines],
            "index": {"backend": "redis"},
            "redis": {"url": self.redis.url, "namespace": f"chaos{port}"},
            "server": {"access_log": False, "shutdown_grace_s": 15.0},
            "scheduling": {"plugins": [{"type": always}], "decider": always},
            "pool": {"stall_after_s": 5.0, "slow_start_s": 5.0},
            # The budget is not what is tried here: whoever can be served must be.
            "retries": {
                "max_attempts": 8,
                "budget_ratio": 1.0,
                "budget_reserve": 1_000_000,
                "continue_streams": continues,
            },
            "tokenization": {"default": str(TOKENIZER_PATH), "remote": False},
        }

    async def start(self) -> None:
        """Raises `ChildFailed`."""
        await asyncio.to_thread(self.redis.start)
        for engine in self.engines:
            engine.launch()
        await asyncio.gather(*(engine.up("/health") for engine in self.engines))
        for router in self.routers:
            router.launch()
        await asyncio.gather(*(router.up("/ready") for router in self.routers))

    async def stop(self) -> None:
        for actor in (*self.engines, *self.routers):
            actor.kill()
        await asyncio.gather(*(actor.gone() for actor in (*self.engines, *self.routers)))
        await asyncio.to_thread(self.redis.close)


def _serve(config: Path, port: int) -> list[str]:
    return ["router", "serve", "--config", str(config), "--port", str(port)]
