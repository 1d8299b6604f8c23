"""Exchange: one HTTP request and its answer, with the faults that it meets and the record of what was sent."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from loadtest.simulator.driver import ClientGone
from loadtest.simulator.ledger import Entry
from loadtest.simulator.node import SimEngine, error_body, fresh_id
from loadtest.simulator.settings import Faults

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TRANSPORT = "kvrouter.sim.transport"
"""Key in the scope's extensions under which the server puts the connection's transport."""

MAX_BODY = 64 * 1024 * 1024


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, kind, status, param)


class Answered(Exception):
    """The answer was given already (by a fault)."""


class Exchange:
    """Reads the body once, then sends either one JSON answer or a stream."""

    def __init__(self, engine: SimEngine, scope: Scope, receive: Receive, send: Send) -> None:
        self.engine = engine
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.raw_path = bytes(scope.get("raw_path") or b"").decode("latin-1") or self.path
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.given_request_id = given or None
        self.request_id = given or fresh_id(32)
        self.raw = b""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._faults: Faults | None = None
        self.entry = self._open_entry()
        self._first_byte_due = True

    def _open_entry(self) -> Entry:
        """A remembered entry for what clients ask of a model, a loose one for the rest."""
        if self.method == "POST" and not self.path.startswith("/sim/"):
            return self.engine.ledger.open(self.request_id, self.path, time.time())
        return Entry(self.request_id, self.path, time.time())

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def read(self) -> None:
        """Read the whole request body into `raw`. Raises ClientGone, ApiError (413)."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY:
                raise ApiError(413, "Request body is too large", "Request Entity Too Large")
            if not message.get("more_body"):
                self.raw = b"".join(parts)
                return

    async def serve(self, handler: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        """Run a handler while watching the connection: when the client leaves, the handler is cancelled at once."""
        work = asyncio.create_task(self._handle(handler))
        watch = asyncio.create_task(self._disconnected())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.entry.abort(time.time())
                work.cancel()
        finally:
            for task in (work, watch):
                task.cancel()
            results = await asyncio.gather(work, watch, return_exceptions=True)
        failure = results[0]
        if isinstance(failure, Exception) and not isinstance(failure, (Answered, OSError)):
            raise failure

    async def _handle(self, handler: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        try:
            await self.misbehave()
            await handler(self)
        except ApiError as error:
            await self.respond(error.status, error.body)

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def misbehave(self) -> None:
        """Meet the faults that come before an answer. Raises ApiError."""
        engine = self.engine
        status = engine.faults.fail_paths.get(self.path)
        if status is not None:
            raise ApiError(status, "fault injected", "InternalServerError")
        faults = self._faults = engine.faults_for(self.path)
        if faults is None:
            return
        if faults.busy:
            raise busy_error()
        if faults.error_rate and engine.rng.random() < faults.error_rate:
            raise ApiError(faults.error_status, "fault injected", "InternalServerError")
        if faults.hang:
            await forever()
        if faults.delay_head_s:
            await asyncio.sleep(faults.delay_head_s)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.entry.status = status
        fields = [*headers, (b"vary", b"Origin"), (b"x-request-id", self.request_id.encode("latin-1"))]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def start_sse(self) -> None:
        await self.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])

    async def chunk(self, body: bytes) -> None:
        """One body chunk of a stream. Raises Answered if a fault cut the connection."""
        faults = self._faults
        if faults is None:
            self.entry.sent(body)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            return
        await self._before_chunk(faults)
        for piece in self._pieces(body, faults):
            self.entry.sent(piece)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        self.entry.done = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """A whole answer in one piece. Raises Answered if a fault cut it."""
        length = (b"content-length", str(len(body)).encode())
        kind = [(b"content-type", content_type)] if content_type else []
        await self.start(status, [length, *kind, *headers])
        faults = self._faults
        if faults is not None:
            if faults.cut_after_chunks is not None:
                half = body[: len(body) // 2]
                self.entry.sent(half)
                await self._send({"type": "http.response.body", "body": half, "more_body": True})
                self._cut(faults)
            await self._before_chunk(faults)
            pieces = self._pieces(body, faults)
            for piece in pieces[:-1]:
                self.entry.sent(piece)
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            body = pieces[-1]
        self.entry.sent(body)
        self.entry.done = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def json(self, value: Any, status: int = 200) -> None:
        await self.respond(status, msgspec.json.encode(value))

    async def _before_chunk(self, faults: Faults) -> None:
        if self._first_byte_due:
            self._first_byte_due = False
            if faults.delay_first_byte_s:
                await asyncio.sleep(faults.delay_first_byte_s)
        if faults.cut_after_chunks is not None and self.entry.chunks >= faults.cut_after_chunks:
            self._cut(faults)
        if faults.hang_after_chunks is not None and self.entry.chunks >= faults.hang_after_chunks:
            await forever()
        if faults.slow_chunk_s:
            await asyncio.sleep(faults.slow_chunk_s)

    @staticmethod
    def _pieces(body: bytes, faults: Faults) -> list[bytes]:
        if not faults.one_byte_chunks or not body:
            return [body]
        return [body[i : i + 1] for i in range(len(body))]

    def _cut(self, faults: Faults) -> None:
        self.entry.cut = True
        transport: asyncio.Transport = self._scope["extensions"][TRANSPORT]
        if faults.cut_with == "rst":
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
        raise Answered


async def forever() -> None:
    """Wait for something that never comes; the watcher of the connection ends it by cancelling the answer."""
    await asyncio.Event().wait()


def busy_error() -> ApiError:
    """What an engine with ``--max-num-queued-reqs`` says when it is full."""
    text = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return ApiError(503, text, "Service Unavailable")


def dead_error() -> ApiError:
    """What requests get from a server whose engine core has died."""
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ApiError(500, text, "InternalServerError")


DEAD_EVENT = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", '
    b'"type": "InternalServerError", "param": null, "code": 500}}\n\n'
)
DONE_EVENT = b"data: [DONE]\n\n"
