"""Simulated engines inside the calling process: `start_engines`, and `aclose` of each when done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from loadtest.simulator.node import SimEngine
from loadtest.simulator.server import HttpServer
from loadtest.simulator.settings import TOKENIZER_PATH, EngineConfig, in_url
from loadtest.simulator.text import SimTokenizer
from loadtest.simulator.transfer import Directory


class _Shared:
    """What the engines of one `start_engines` have in common; it ends with the last of them."""

    def __init__(self) -> None:
        self.directory = Directory()
        self.context = zmq.asyncio.Context()
        """One for all: each context has threads of its own."""
        self.context.set(zmq.MAX_SOCKETS, self.context.get(zmq.SOCKET_LIMIT))
        self._users = 1

    def join(self) -> None:
        self._users += 1

    async def leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            await self.directory.aclose()
            self.context.destroy(linger=0)


class RunningEngine:
    """A listening engine.

    Close it with `aclose` (in order) or `kill` (as a crash); `dead` is set when it died by itself.
    """

    def __init__(self, engine: SimEngine, server: HttpServer, shared: _Shared) -> None:
        self.engine = engine
        self.url = f"http://{in_url(engine.config.host)}:{engine.port}"
        self.dead = asyncio.Event()
        self._server = server
        self._shared = shared
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
        await self._shared.leave()
        self.dead.set()

    def _die(self) -> None:
        self._server.stop_listening()
        self.dead.set()
        asyncio.get_running_loop().call_later(0.05, self._server.kill)


async def start_engines(
    configs: Sequence[EngineConfig], *, tokenizer: SimTokenizer | None = None
) -> list[RunningEngine]:
    """Start engines that know each other, in the order given; all or none.

    `tokenizer` stands in for the package's own, for callers that have loaded it already. Raises OSError,
    SimulatorConfigError.
    """
    shared = _Shared()
    tokenizers: dict[str | None, SimTokenizer] = {} if tokenizer is None else {None: tokenizer}
    started: list[RunningEngine] = []
    try:
        for config in configs:
            if config.tokenizer not in tokenizers:
                folder = TOKENIZER_PATH if config.tokenizer is None else Path(config.tokenizer)
                tokenizers[config.tokenizer] = SimTokenizer.load(folder)
            started.append(await _start(config, tokenizers[config.tokenizer], shared))
    except BaseException:
        for running in started:
            await running.aclose()
        raise
    finally:
        await shared.leave()
    return started


async def _start(config: EngineConfig, tokenizer: SimTokenizer, shared: _Shared) -> RunningEngine:
    engine = SimEngine(config, tokenizer, shared.directory)
    server = HttpServer(engine)
    port = await server.start()
    try:
        engine.start(port, shared.context)
    except BaseException:
        await engine.aclose()
        await server.aclose()
        raise
    shared.join()
    return RunningEngine(engine, server, shared)
