"""Relay: requests to engines and their answers as they come. The hot path, and the `Upstream` of `router.ports`.

One set of keep-alive connections per endpoint URL, one coarse timer for all time-outs, no task of its own: whoever
calls waits on the connection's own future. A connection that was used before and closes at once, without a byte of
answer, was closed by the engine before it saw the request; it is replaced once. Other retries are the director's.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from router.core import Endpoint
from router.ports import Reliance, UpstreamBroken, UpstreamRefused
from router.upstream.connection import Connection, Limits, RelayResponse
from router.upstream.connections import Connections
from router.upstream.patience import within
from router.wire.http_head import OriginError, parse_origin, request_head


class RelayOptions(NamedTuple):
    """Times in seconds."""

    connect_timeout_s: float = 5.0
    """Name lookup, TCP and TLS together."""
    first_byte_timeout_s: float = 600.0
    """From the request's first byte out to the answer's first body byte, unless the call says otherwise."""
    keep_idle_s: float = 4.0
    """How long an unused connection is kept. Below uvicorn's keep-alive of 5 s, which vLLM uses."""
    replace_within_s: float = 1.0
    """A used connection that closes without an answer is replaced if it closes this soon after the request was sent.
    Later the engine may have worked on it, and whether it is sent again is the director's decision."""
    max_idle: int = 256
    """Unused connections kept per endpoint URL."""
    sweep_s: float = 0.25
    """Granularity of all time-outs but the connect time-out."""
    tls_server_name: str | None = None
    """Name to ask for and to find in certificates; None: the host of the endpoint's URL."""
    limits: Limits = Limits()


class ConnectionCounts(NamedTuple):
    open: int
    idle: int


class Relay:
    """Belongs to one event loop. `aclose` breaks what is running."""

    def __init__(self, options: RelayOptions | None = None, *, ssl_context: ssl.SSLContext | None = None) -> None:
        """`ssl_context`: for https endpoints; by default the system's certificates, names verified."""
        self._options = options or RelayOptions()
        self._ssl_context = ssl_context
        self._by_url: dict[str, Connections] = {}
        self._distrusted: set[str] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self,
        endpoint: Endpoint,
        method: bytes,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        first_byte_timeout_s: float | None = None,
        relies_on: Reliance | None = None,
    ) -> RelayResponse:
        """See `router.ports.Upstream.open`. Also raises `RequestHeadError` for a head that would not stay in shape."""
        if self._closed:
            raise UpstreamRefused("the router is closing its connections")
        connections = self._by_url.get(endpoint.url) or self._add(endpoint.url)
        head = request_head(connections.origin, method, path, headers, len(body))
        timeout_s = self._options.first_byte_timeout_s if first_byte_timeout_s is None else first_byte_timeout_s
        loop = asyncio.get_running_loop()
        connection = connections.take()
        while True:
            if connection is None:
                connection = await self._connect(connections)
            used_before, sent_at = connection.served > 0, loop.time()
            response = connection.send(head, body, head_only=method == b"HEAD", relies_on=relies_on)
            try:
                await response.first_byte(timeout_s)
            except UpstreamBroken:
                at_once = loop.time() - sent_at <= self._options.replace_within_s
                if response.touched or not used_before or not at_once or self._closed:
                    raise
                connection = None
            except BaseException:
                response.abandon()
                raise
            else:
                return response

    def distrust(self, url: str) -> None:
        """The endpoint there is not believed to answer. What waits for its first byte breaks with `UpstreamAbandoned`,
        now and until `trust`; answers that have begun do so when they pause for `Limits.distrusted_idle_s`."""
        self._distrusted.add(url)
        connections = self._by_url.get(url)
        if connections is not None:
            connections.distrusted = True
            now = asyncio.get_running_loop().time()
            # Its kept connections are no better than it is: all of them are closed.
            connections.sweep(now, float("inf"))

    def trust(self, url: str) -> None:
        """Takes `distrust` back."""
        self._distrusted.discard(url)
        connections = self._by_url.get(url)
        if connections is not None:
            connections.distrusted = False

    def forsake(self, url: str) -> None:
        """What lay on the endpoint there is gone, and does not come back with it: answers that rely on it and are
        still waiting for it break with `UpstreamOrphaned`, as those do that rely on a distrusted one."""
        for connections in self._by_url.values():
            connections.orphan(url)

    def heard_at(self, url: str) -> float | None:
        """Loop time at which bytes of an answer last came from there, to `RelayOptions.sweep_s`; None: not lately."""
        connections = self._by_url.get(url)
        return None if connections is None else connections.heard_at

    def counts(self) -> Mapping[str, ConnectionCounts]:
        """Endpoint URL -> connections, for metrics. URLs without any are absent."""
        return {url: ConnectionCounts(len(c.live), c.idle) for url, c in self._by_url.items() if c.live}

    async def aclose(self) -> None:
        """Breaks every answer, closes every connection and waits until the transports are gone. Idempotent."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connections in self._by_url.values():
            connections.abort(UpstreamBroken("the router closed the connection"))
        # An aborted transport reports its end within a few loop turns; there is nothing else to wait on.
        while any(connections.live for connections in self._by_url.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._by_url.clear()

    def _add(self, url: str) -> Connections:
        try:
            origin = parse_origin(url)
        except OriginError as error:
            raise UpstreamRefused(str(error)) from error
        connections = Connections(origin, self._options.max_idle, asyncio.get_running_loop().time)
        connections.distrusted = url in self._distrusted
        self._by_url[url] = connections
        return connections

    async def _connect(self, connections: Connections) -> Connection:
        origin = connections.origin
        loop = asyncio.get_running_loop()
        connection = Connection(connections, loop, self._options.limits)
        connections.connecting += 1
        self._schedule_sweep(loop)
        try:
            await within(
                self._options.connect_timeout_s,
                loop.create_connection(
                    lambda: connection,
                    origin.host,
                    origin.port,
                    ssl=self._tls() if origin.tls else None,
                    server_hostname=self._options.tls_server_name if origin.tls else None,
                ),
            )
        except TimeoutError:
            raise UpstreamRefused("no connection within the time allowed") from None
        except OSError as error:
            raise UpstreamRefused(f"no connection: {_reason(error)}") from error
        except asyncio.CancelledError:
            # It may stand already, and nobody takes it.
            connection.abort()
            raise
        finally:
            connections.connecting -= 1
        if self._closed or not connection.usable:
            connection.abort()
            raise UpstreamRefused("the connection was closed as soon as it was made")
        connections.live.add(connection)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sweeper is None and not self._closed:
            self._sweeper = loop.call_later(self._options.sweep_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        now = loop.time()
        for url, connections in tuple(self._by_url.items()):
            connections.sweep(now, now - self._options.keep_idle_s, self._distrusted)
            if connections.unused:
                del self._by_url[url]
        if self._by_url:
            self._schedule_sweep(loop)


def _reason(error: OSError) -> str:
    """A short text without addresses: TLS errors say more than their number, the others no more."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS failed"
    return os.strerror(error.errno) if error.errno is not None else "the host name was not found"
