"""The router as a process: serving on its listeners, signals, and the order of its end.

On SIGTERM or SIGINT: ``/ready`` says no, the router goes on accepting while balancers notice (``server.settle_s``),
then refuses new requests, lets running ones finish (``server.shutdown_grace_s``), tells what is left that it is cut,
and exits. A second signal cuts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn

from router.api.http_protocol import ClientLimits, Connections
from router.api.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

_CUT_SECONDS = 2.0
_SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would close its listener before readiness could turn red."""

    def __init__(self, connections: Connections, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.connections = connections

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        looking = asyncio.create_task(self.connections.run(), name="client connections")
        try:
            await super().serve(sockets)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Process:
    """Serves one ASGI application on one socket until it is told to end, and administration's beside it to the last."""

    def __init__(
        self,
        asgi: Callable[..., Any],
        lifecycle: Lifecycle,
        listener: socket.socket,
        *,
        settle_s: float,
        grace_s: float,
        limits: ClientLimits,
        keepalive_s: int = 75,
        on_reload: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
        admin: tuple[Callable[..., Any], socket.socket] | None = None,
    ) -> None:
        """`admin`: application and listener of administration, where it has its own; `tls`: for both listeners."""
        self._lifecycle = lifecycle
        self._listener = listener
        self._settle_s = settle_s
        self._grace_s = grace_s
        self._on_reload = on_reload
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._server = _server(asgi, limits, keepalive_s, tls)
        self._admin = None if admin is None else (_server(admin[0], limits, keepalive_s, tls), admin[1])

    def apply(self, *, settle_s: float, grace_s: float, limits: ClientLimits) -> None:
        """In force from now on; `limits` for connections that are made from now on."""
        self._settle_s = settle_s
        self._grace_s = grace_s
        for server in (self._server, *(() if self._admin is None else (self._admin[0],))):
            server.connections.limits = limits

    def stop(self) -> None:
        """First call: begin to end. Second: cut what still runs."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Until `stop` and everything that follows it."""
        loop = asyncio.get_running_loop()
        for number in _SHUTDOWN_SIGNALS:
            loop.add_signal_handler(number, self.stop)
        if self._on_reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="http server")
        stopping = asyncio.create_task(self._stop.wait(), name="stop signal")
        administering = None
        if self._admin is not None:
            server, admin_listener = self._admin
            administering = asyncio.create_task(server.serve(sockets=[admin_listener]), name="admin server")
        try:
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._end()
            self._server.should_exit = True
            await serving
        finally:
            stopping.cancel()
            if self._admin is not None and administering is not None:
                self._admin[0].should_exit = True
                await administering
            for number in (*_SHUTDOWN_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _end(self) -> None:
        lifecycle = self._lifecycle
        lifecycle.draining = True
        logger.info("ending: %d requests under way, accepting for another %g s", lifecycle.active, self._settle_s)
        await self._wait(asyncio.sleep(self._settle_s))
        lifecycle.refuse()
        await self._wait(lifecycle.wait_idle(self._grace_s))
        if lifecycle.active:
            logger.warning("cutting %d requests that did not end within the grace time", lifecycle.active)
            lifecycle.cut_all()
            await lifecycle.wait_idle(_CUT_SECONDS)

    async def _wait(self, what: Any) -> None:
        """Waits for `what`, or for the second signal."""
        waiting = asyncio.ensure_future(what)
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([waiting, hurried], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, hurried):
                task.cancel()
            await asyncio.gather(waiting, hurried, return_exceptions=True)


def _server(asgi: Callable[..., Any], limits: ClientLimits, keepalive_s: int, tls: ssl.SSLContext | None) -> _Server:
    connections = Connections(limits, tls)
    return _Server(
        connections,
        uvicorn.Config(
            asgi,
            # uvicorn calls it as it would the class.
            http=cast(Any, connections),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=keepalive_s,
            timeout_graceful_shutdown=int(_CUT_SECONDS),
        ),
    )
