"""The stand-in: answers 503 in the workers' place while none of them serves, so that nobody waits without end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

from router.errors import NoWorker

_BACKLOG = 2048
_HEAD_S = 5.0
_HEAD_BYTES = 64 * 1024
_LINGER_S = 1.0
"""How long a client may go on sending: closed at once, with unread bytes, it might never see the answer."""


class StandIn:
    """Serves from `start` to `stop`, which may be called again and again."""

    def __init__(self, listeners: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        self._listeners = listeners
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        error = NoWorker("No worker process of this router serves now; its log tells why.", retry_after_s=1)
        body = error.body()
        fields = b"".join(b"%b: %b\r\n" % field for field in error.headers())
        head = b"HTTP/1.1 %d Service Unavailable\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n"
        self._head = head % (error.status, fields, len(body))
        self._body = body

    @property
    def serves(self) -> bool:
        return bool(self._servers)

    async def start(self) -> None:
        """Idempotent. Raises OSError."""
        if self._servers:
            return
        servers = self._servers = []
        for listener in self._listeners:
            server = await asyncio.start_server(self._answer, sock=listener.dup(), backlog=_BACKLOG, ssl=self._tls)
            if self._servers is not servers:
                # Stopped meanwhile.
                server.close()
                return
            servers.append(server)

    def stop(self) -> None:
        """What is under way ends by itself. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._head if head.startswith(b"HEAD ") else self._head + self._body)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            async with asyncio.timeout(_LINGER_S):
                while await reader.read(1 << 16):
                    pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Gone, too slow (TimeoutError is an OSError), or not worth an answer.
            return
        finally:
            writer.close()
