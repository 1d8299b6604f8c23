"""A TCP server that answers by script, byte for byte: engines that cut, stall, lie about lengths or never stop talking.

    async def script(peer: Peer) -> None:
        request = await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nhi")

    async with RawServer(script) as server:
        ... server.url ...

The script runs once per connection, and the connection is closed when it returns. A peer that goes away ends it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple, Self

LINE_BYTES = 1024 * 1024
"""Longest request head that is read."""


class PeerGone(Exception):
    """The client closed the connection."""


class RawRequest(NamedTuple):
    line: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    """As sent, names in lower case."""
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.headers if field == name]


class Peer:
    """One accepted connection."""

    def __init__(
        self, server: RawServer, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self.index = index
        """0 for the first connection of the server."""

    async def head(self) -> RawRequest:
        """The next request's head, its body left unread."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            raise PeerGone from None
        line, *fields = head[:-4].split(b"\r\n")
        pairs = (field.partition(b":") for field in fields)
        return RawRequest(line, tuple((name.lower(), value.strip()) for name, _, value in pairs), b"")

    async def request(self) -> RawRequest:
        """The next request with its body."""
        request = await self.head()
        lengths = request.values(b"content-length")
        request = request._replace(body=await self.read(int(lengths[0]) if lengths else 0))
        self._server.requests.append(request)
        return request

    async def read(self, length: int) -> bytes:
        try:
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise PeerGone from None

    async def send(self, data: bytes) -> None:
        """Returns when the socket has taken it; counts towards `RawServer.sent_bytes` then."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            raise PeerGone from None
        self._server.sent_bytes += len(data)

    async def gone(self) -> None:
        """Waits until the client closes; bytes that it still sends are thrown away."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    @property
    def gone_away(self) -> bool:
        """The client has closed, and nothing that it sent before is left to read."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.transport.is_closing()

    def reset(self) -> None:
        """Closes with RST."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self, script: Script, *, ssl_context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._script = script
        self._ssl_context = ssl_context
        self._host = host
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[RawRequest] = []
        self.connections = 0
        self.open = 0
        """Connections whose script is running."""
        self.ended = 0
        """Connections whose script has returned or whose client has gone."""
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl_context else 'http'}://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._ssl_context, limit=LINE_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def until(self, reached: Callable[[RawServer], bool], timeout_s: float = 10.0) -> None:
        """Waits until the server's counts satisfy `reached`."""
        async with asyncio.timeout(timeout_s):
            while not reached(self):
                await asyncio.sleep(0.005)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(Peer(self, self.connections, reader, writer), writer))
        self.connections += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before it has begun runs none of its clean-up.
        task.add_done_callback(lambda _: writer.transport.abort() if not writer.is_closing() else None)

    async def _serve(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._script(peer)
        except PeerGone:
            pass
        finally:
            self.open -= 1
            self.ended += 1
            writer.close()
            try:
                async with asyncio.timeout(1):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                writer.transport.abort()


def answers(*parts: bytes) -> Script:
    """Reads one request, sends the parts with a loop turn in between, then closes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
            await asyncio.sleep(0)

    return script


def keeps_alive(answer: bytes) -> Script:
    """Gives every request on a connection the same answer until the client goes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return script
