"""Simulated engines inside the calling process: ``async with`` nothing, just `start_engines` and each engine's
`aclose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from loadtest.simulator.node import SimEngine
from loadtest.simulator.server import HttpServer
from loadtest.simulator.settings import TOKENIZER_PATH, EngineConfig
from loadtest.simulator.text import SimTokenizer
from loadtest.simulator.transfer import Directory


class RunningEngine:
    """A listening engine.

    Close it with `aclose` (in order) or `kill` (as a crash); `dead` is set when it died by itself.
    """

    def __init__(self, engine: SimEngine, server: HttpServer, directory: Directory) -> None:
        self.engine = engine
        self.url = f"http://{engine.config.host}:{engine.port}"
        self.dead = asyncio.Event()
        self._server = server
        self._directory = directory
        self._closing: asyncio.Task[None] | None = None
        engine.on_death = self._die

    @property
    def host(self) -> str:
        return self.engine.config.host

    @property
    def port(self) -> int:
        return self.engine.port

    @property
    def event_ports(self) -> list[tuple[int, int]]:
        """(live, replay) for each rank."""
        return [(p.port, p.replay_port) for p in self.engine.publishers]

    async def kill(self) -> None:
        """Stop listening and cut every connection, as a killed process does."""
        self._server.kill()
        await self.aclose()

    async def stop(self) -> None:
        """What SIGTERM does: see `EngineConfig.shutdown_timeout_s`. The engine is closed afterwards."""
        timeout = self.engine.config.shutdown_timeout_s
        if timeout > 0:
            await self._server.drain(timeout)
        else:
            self.engine.stop()
            await self._server.drain(1.0)
        await self.aclose()

    async def aclose(self) -> None:
        """Close everything; may be called again."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.engine.aclose()
        await self._server.aclose()
        await self._directory.aclose()
        self.dead.set()

    def _die(self) -> None:
        self._server.stop_listening()
        self.dead.set()
        asyncio.get_running_loop().call_later(0.05, self._server.kill)


async def start_engines(configs: Sequence[EngineConfig]) -> list[RunningEngine]:
    """Start engines that know each other, in the order given; all or none. Raises OSError, SimulatorConfigError."""
    directory = Directory()
    tokenizers: dict[str | None, SimTokenizer] = {}
    started: list[RunningEngine] = []
    try:
        for config in configs:
            if config.tokenizer not in tokenizers:
                folder = TOKENIZER_PATH if config.tokenizer is None else Path(config.tokenizer)
                tokenizers[config.tokenizer] = SimTokenizer.load(folder)
            started.append(await _start(config, tokenizers[config.tokenizer], directory))
    except BaseException:
        for running in started:
            await running.aclose()
        raise
    return started


async def _start(config: EngineConfig, tokenizer: SimTokenizer, directory: Directory) -> RunningEngine:
    engine = SimEngine(config, tokenizer, directory)
    server = HttpServer(engine)
    port = await server.start()
    try:
        engine.start(port)
    except BaseException:
        await engine.aclose()
        await server.aclose()
        raise
    return RunningEngine(engine, server, directory)
