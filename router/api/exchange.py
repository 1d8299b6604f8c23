"""Exchange: one client's request and the reply to it, over raw ASGI.

Owns reading the body within its bound, watching for the client's departure, and the reply's framing. Implements
`router.ports.Reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from router.errors import PayloadTooLarge, RouterError, ShuttingDown
from router.ports import CUT

_OF_A_CLOSED_TRANSPORT = "unable to perform operation on "
"""How uvloop begins to say that a connection is closed, in the moment before it tells the server of the close."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


class Exchange:
    __slots__ = (
        "_cut",
        "_gone",
        "_receive",
        "_send",
        "_streaming",
        "_task",
        "ended",
        "fields",
        "request_id",
        "started",
    )

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[Any] | None = None
        self._gone = False
        self._cut = False
        self._streaming = False
        self.request_id: str | None = None
        self.fields: list[tuple[bytes, bytes]] = []
        """Put on the answer, whatever it is."""
        self.started = False
        self.ended = False

    async def read_body(self, declared: int | None, limit: int) -> bytes:
        """The whole body. Raises `PayloadTooLarge` past `limit` bytes (declared or received) and `ClientGone`."""
        if declared is not None and declared > limit:
            raise PayloadTooLarge(
                f"The body has {declared} bytes; at most {limit} are accepted (server.max_body_bytes)."
            )
        message = await self._next()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(body) > limit:
                raise PayloadTooLarge(f"The body has over {limit} bytes (server.max_body_bytes).")
            return body
        pieces = [body]
        size = len(body)
        while True:
            message = await self._next()
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise PayloadTooLarge(f"The body has over {limit} bytes (server.max_body_bytes).")
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def _next(self) -> Any:
        """The next piece of the body. Raises `ClientGone`."""
        try:
            message = await self._receive()
        except RuntimeError as error:
            if _of_a_closed_transport(error):
                raise ClientGone from None
            raise
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    async def attend(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` while watching for the client's departure, which cancels it. Raises `ClientGone` then.

        Raw ASGI tells of a disconnect only through a pending ``receive()``, so one is kept pending from the end of
        the body to the end of the response.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an exchange runs in a task")
        self._task = task
        watcher = asyncio.ensure_future(self._departure())
        watcher.add_done_callback(self._on_departure)
        try:
            await work
        except asyncio.CancelledError:
            if self._gone:
                task.uncancel()
                raise ClientGone from None
            if self._cut:
                task.uncancel()
                raise ShuttingDown("The router is shutting down before this request has ended.") from None
            raise
        finally:
            self._task = None
            watcher.remove_done_callback(self._on_departure)
            watcher.cancel()

    async def _departure(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _on_departure(self, watcher: asyncio.Task[None]) -> None:
        if watcher.cancelled() or self._task is None:
            return
        watcher.exception()
        self._leave(self._task)

    async def _unsent(self, error: RuntimeError) -> None:
        """What cannot be sent because the connection has just closed is the client's departure, noticed here first.

        Raises `error` where it is anything else, and `ClientGone` where no work is left for the departure to cancel.
        """
        if not _of_a_closed_transport(error):
            raise error
        if self._task is None:
            raise ClientGone
        self._leave(self._task)
        # The cancellation arrives here.
        await asyncio.sleep(0)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        if not self._gone:
            self._gone = True
            task.cancel()

    def cut(self) -> None:
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel(CUT)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._streaming = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        headers += self.fields
        if self.request_id is not None:
            headers.append((b"x-request-id", self.request_id.encode("ascii")))
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        except RuntimeError as error:
            await self._unsent(error)

    async def send(self, chunk: bytes) -> None:
        try:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except RuntimeError as error:
            await self._unsent(error)

    async def end(self, chunk: bytes = b"") -> None:
        self.ended = True
        try:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": False})
        except RuntimeError as error:
            await self._unsent(error)

    async def fail(self, error: RouterError) -> None:
        """Tells the client of the error in whatever form is still possible.

        Before the head: an OpenAI-shaped error. Inside an event stream: an error event, and no ``[DONE]``. Inside
        any other body: nothing can be said. In the last two the exchange never ends, so the server closes the
        connection short of its framing and the client sees the cut. A client that has gone is told nothing.
        """
        with contextlib.suppress(ClientGone):
            if not self.started:
                body = error.body()
                headers = [*error.headers(), (b"content-length", str(len(body)).encode())]
                await self.start(error.status, headers)
                await self.end(body)
            elif self._streaming and not self.ended:
                # The blank line first ends whatever half event the engine left behind.
                await self.send(b"\n\ndata: " + error.body() + b"\n\n")


def _of_a_closed_transport(error: RuntimeError) -> bool:
    return str(error).startswith(_OF_A_CLOSED_TRANSPORT)
