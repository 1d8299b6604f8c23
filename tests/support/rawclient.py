"""A client that sends exactly the bytes it is told to, and shows an answer as it came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol


class Listening(Protocol):
    @property
    def url(self) -> str: ...


class RawAnswer(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    """As sent, names in lower case."""
    body: bytes
    complete: bool
    """The body ended as its framing says; False: the connection closed before."""
    chunks: tuple[bytes, ...] = ()
    """Of a chunked body."""

    def values(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field == name]


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> RawAnswer:
        await self.send(data)
        return await self.answer()

    async def head(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Status and fields of the next head. Raises IncompleteReadError or ConnectionError when none comes."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head[:-4].split("\r\n")
        pairs = (field.partition(":") for field in fields)
        return int(line.split(" ")[1]), tuple((name.lower(), value.strip()) for name, _, value in pairs)

    async def answer(self) -> RawAnswer:
        """The next final answer, whole or up to where it is cut."""
        status, headers = await self.head()
        while status < 200:
            status, headers = await self.head()
        fields = dict(headers)
        if "chunked" in fields.get("transfer-encoding", ""):
            return await self._chunked(status, headers)
        if "content-length" not in fields:
            return RawAnswer(status, headers, await self.reader.read(), True)
        body = await self._exactly(int(fields["content-length"]))
        return RawAnswer(status, headers, body, len(body) == int(fields["content-length"]))

    async def _chunked(self, status: int, headers: tuple[tuple[str, str], ...]) -> RawAnswer:
        chunks: list[bytes] = []
        complete = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                chunks.append((await self.reader.readexactly(size + 2))[:-2])
            await self.reader.readexactly(2)
            complete = True
        return RawAnswer(status, headers, b"".join(chunks), complete, tuple(chunks))

    async def _exactly(self, length: int) -> bytes:
        try:
            return await self.reader.readexactly(length)
        except asyncio.IncompleteReadError as short:
            return short.partial
        except ConnectionError:
            return b""

    async def closed(self) -> bytes:
        """Waits until the router closes; returns what still came."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    def reset(self) -> None:
        """Leaves with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(router: Listening, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """`receive_buffer`: bytes the kernel holds for a client that does not read."""
    host, port = router.url.removeprefix("http://").rsplit(":", 1)
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=64 * 1024)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(path: str, body: bytes, *fields: str, framing: bool = True) -> bytes:
    """A POST as bytes. `framing` False: the caller's fields say how the body is framed."""
    lines = [f"POST {path} HTTP/1.1", "host: router", "content-type: application/json", *fields]
    if framing:
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


async def left(router: Listening, *requests: bytes, after_s: float = 0.0) -> None:
    """Sends each request on a connection of its own and leaves with RST, `after_s` later."""

    async def one(data: bytes) -> None:
        async with connected(router) as client:
            await client.send(data)
            await asyncio.sleep(after_s)
            client.reset()

    await asyncio.gather(*(one(data) for data in requests))


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()
