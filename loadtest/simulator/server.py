"""HttpServer: one simulated engine behind a listening socket. Any number of them live in one event loop.

uvicorn's HTTP protocol is used without its server class: no signal handlers, no ticker for each engine, and the
connections at hand for faults that cut them.
"""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from loadtest.simulator.api.app import SimApp
from loadtest.simulator.api.exchange import TRANSPORT
from loadtest.simulator.node import SimEngine
from loadtest.simulator.settings import in_url

BACKLOG = 2048


class _Protocol(HttpToolsProtocol):
    """Puts the connection into the scope, so that a fault can cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, object] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]  # ASGI leaves the values open


class HttpServer:
    """Listens from `start` to `aclose` (which waits for running answers a moment) or `kill` (which cuts them)."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self._config = Config(SimApp(engine), log_config=None, access_log=False, lifespan="off", proxy_headers=False)
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; the port, which is the configured one or a free one. Raises OSError."""
        self._set_date()
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_INET6 if ":" in self._engine.config.host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._engine.config.host, self._engine.config.port))
        except OSError:
            sock.close()
            raise
        self._server = await loop.create_server(self._make_protocol, sock=sock, backlog=BACKLOG)
        self._ticker = asyncio.create_task(self._tick())
        return int(sock.getsockname()[1])

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def drain(self, seconds: float) -> None:
        """Wait until no answer runs, at most that long."""
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=seconds)

    def kill(self) -> None:
        """Stop listening and cut every connection at once."""
        self.stop_listening()
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def aclose(self) -> None:
        self.stop_listening()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self.drain(1.0)
        self.kill()
        await self.drain(1.0)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        # A turn of the loop each for the transports' and the sockets' own endings.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _make_protocol(self) -> asyncio.Protocol:
        return _Protocol(config=self._config, server_state=self._state, app_state={})

    def _set_date(self) -> None:
        fields: list[tuple[bytes, bytes]] = [(b"date", formatdate(usegmt=True).encode()), (b"server", b"uvicorn")]
        self._state.default_headers = fields

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._set_date()


def describe(engine: SimEngine) -> dict[str, Any]:
    """What a ready line says of an engine."""
    return {
        "url": f"http://{in_url(engine.config.host)}:{engine.port}",
        "role": engine.config.role,
        "model": engine.config.model,
        "events": [p.port for p in engine.publishers],
    }
