"""One upstream connection and the answers that pass over it.

`Connection` is the asyncio protocol: it writes a request, feeds what arrives to llhttp, and gives the connection back
the moment an answer is complete. `RelayResponse` is one answer: it holds what has arrived and not yet been taken, and
lives on after its connection has moved to the next request. Neither starts a task or a timer; `sweep` is called from
the relay's one coarse timer.

Framing is llhttp's, strict (RFC 9112, 6.3): two lengths, or a length beside a transfer coding, break the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import NamedTuple, Protocol, cast

import httptools

from router.core import Headers
from router.ports import (
    Reliance,
    UpstreamAbandoned,
    UpstreamBroken,
    UpstreamError,
    UpstreamOrphaned,
    UpstreamSilent,
)

_JOIN_BELOW = 8 * 1024
_WRITE_SLICE = 256 * 1024
_NEVER = float("inf")
_H = ord("H")


class Limits(NamedTuple):
    """Bounds of one answer. Sizes in bytes, times in seconds."""

    buffer_bytes: int = 256 * 1024
    """Untaken bytes at which reading from the engine pauses; one read of the socket may go beyond it."""
    head_bytes: int = 64 * 1024
    """Bytes without a body byte among them: interim and final heads together, trailers, chunk extensions."""
    idle_timeout_s: float = 300.0
    """Between two pieces of a body, while somebody waits for one."""
    distrusted_idle_s: float = 10.0
    """The same while the endpoint is not believed to answer (`Relay.distrust`)."""


class Owner(Protocol):
    """Who keeps connections between requests: `router.upstream.connections.Connections`."""

    def ready(self, connection: Connection) -> None:
        """The answer is complete and the connection may serve another request."""
        ...

    def lost(self, connection: Connection) -> None: ...


class RelayResponse:
    """An `UpstreamResponse`. One consumer at a time; bytes are bounded by `Limits.buffer_bytes` plus one read."""

    __slots__ = (
        "_begun",
        "_connection",
        "_deadline",
        "_ended",
        "_error",
        "_idle_timeout_s",
        "_loop",
        "_parts",
        "_waiter",
        "headers",
        "orphaned",
        "relies_on",
        "status",
        "touched",
    )

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, idle_timeout_s: float) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._connection: Connection | None = connection
        self._loop = loop
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = _NEVER
        self._idle_timeout_s = idle_timeout_s
        self._error: UpstreamError | None = None
        self._ended = False
        self._begun = False
        self.touched = False
        """The engine has said something."""
        self.relies_on: Reliance | None = None
        self.orphaned = False
        """What it relies on is gone for good."""

    async def first_byte(self, timeout_s: float) -> None:
        """Waits for the head and a body byte or the end; raises what `ports.Upstream.open` names."""
        deadline = self._loop.time() + timeout_s
        while not self._parts and not self._ended:
            if self._error is not None:
                raise _afresh(self._error)
            await self._wait(deadline)
        self._begun = True

    def read_nowait(self) -> bytes:
        """Everything that has arrived, in one piece; ``b""`` when nothing has, at the end, and after a break."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        connection = self._connection
        if connection is not None:
            connection.drained()
        return data

    async def read(self) -> bytes:
        """Everything that has arrived, at least one byte; ``b""`` only at the end.

        Raises `UpstreamBroken` (cut short or malformed, once what came before is taken) and `UpstreamSilent`.
        """
        while not self._parts:
            if self._ended:
                return b""
            if self._error is not None:
                raise _afresh(self._error)
            await self._wait(self._loop.time() + self._idle_timeout_s)
        return self.read_nowait()

    @property
    def ended(self) -> bool:
        """The answer is complete and all of it has been taken."""
        return self._ended and not self._parts

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """`close` without an await. A complete answer has given its connection back already."""
        connection = self._connection
        if connection is not None:
            self.broke(UpstreamBroken("the response was closed before its end"))
            connection.abort()

    def _wait(self, deadline: float) -> asyncio.Future[None]:
        self._deadline = deadline
        self._waiter = waiter = self._loop.create_future()
        return waiter

    # Called by the connection.

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def completed(self) -> None:
        self._ended = True
        self._connection = None
        self.wake()

    def broke(self, error: UpstreamError) -> None:
        self._error = error
        self._connection = None
        self.wake()

    def overdue(self, now: float) -> bool:
        """Somebody has waited for a byte longer than allowed."""
        waiter = self._waiter
        return waiter is not None and now > self._deadline and not waiter.done()

    def forlorn(self, now: float, idle_s: float) -> bool:
        """Somebody waits for the first byte, or has waited `idle_s` for another."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        return not self._begun or now > self._deadline - self._idle_timeout_s + idle_s

    def deserted(self, gone: Set[str]) -> bool:
        """Nothing has come, and what it waits for is gone. `gone`: URLs that do not answer."""
        relies_on = self.relies_on
        if relies_on is None or self._begun or self._parts or self._ended:
            return False
        return (self.orphaned or relies_on.url in gone) and relies_on.waits()

    @property
    def parts(self) -> list[bytes]:
        return self._parts


def _afresh(error: UpstreamError) -> UpstreamError:
    """What to raise: a stored exception would hold, by its traceback, the frames that hold its response."""
    return type(error)(*error.args)


class Connection(asyncio.Protocol):
    """One TCP (or TLS) connection to an engine, for one request at a time."""

    __slots__ = (
        "_buffered",
        "_done",
        "_head_only",
        "_headers",
        "_interim",
        "_keep",
        "_limits",
        "_loop",
        "_owner",
        "_parser",
        "_read_paused",
        "_refused",
        "_response",
        "_sink",
        "_transport",
        "_unsent",
        "_until_close",
        "_without_body",
        "_write_paused",
        "heard",
        "idle_since",
        "served",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self._owner = owner
        self._loop = loop
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: RelayResponse | None = None
        self._sink: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._unsent: memoryview | None = None
        self._buffered = 0
        self._without_body = 0
        self._read_paused = False
        self._write_paused = False
        self._head_only = False
        self._interim = False
        self._until_close = False
        self._done = False
        self._keep = False
        self._refused: str | None = None
        self.idle_since = 0.0
        """Loop time since which it has waited for a request."""
        self.served = 0
        """Answers completed."""
        self.heard = False
        """Bytes have come since this was last set to False."""

    # What the relay asks for.

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, *, head_only: bool, relies_on: Reliance | None = None) -> RelayResponse:
        """Writes a request on an idle connection. `head_only`: a HEAD request, answered without a body."""
        transport = self._transport
        if transport is None:
            raise UpstreamBroken("the connection is closed")
        response = RelayResponse(self, self._loop, self._limits.idle_timeout_s)
        response.relies_on = relies_on
        self._response = response
        self._sink = response.parts
        self._headers = None
        self._head_only = head_only
        self._interim = self._until_close = self._done = self._keep = False
        self._buffered = self._without_body = 0
        if len(body) < _JOIN_BELOW:
            transport.write(head + body)
        elif len(body) <= _WRITE_SLICE:
            transport.writelines((head, body))
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._send_more()
        return response

    def drained(self) -> None:
        """Everything that had arrived was taken."""
        self._buffered = 0
        if self._read_paused:
            self._resume()

    def sweep(self, now: float, *, distrusted: bool = False, gone: Set[str] = frozenset()) -> None:
        """Breaks an answer that has kept its reader waiting too long; where the endpoint is distrusted, also one that
        has not begun, and one that has paused for `Limits.distrusted_idle_s`; and one that waits for what lay on an
        endpoint that is `gone`."""
        response = self._response
        if response is None:
            return
        if response.overdue(now):
            self._break(UpstreamSilent("no byte from the engine within the time allowed"))
        elif distrusted and response.forlorn(now, self._limits.distrusted_idle_s):
            self._break(UpstreamAbandoned("the engine was given up while it was waited for"))
        elif response.deserted(gone):
            self._break(UpstreamOrphaned("what the engine had to compute from is gone"))

    def orphan(self, url: str) -> None:
        """What lay on the endpoint there is gone for good."""
        response = self._response
        if response is not None and response.relies_on is not None and response.relies_on.url == url:
            response.orphaned = True

    def abort(self) -> None:
        """Closes at once, dropping what is unsent: this is what stops an engine's work."""
        self._response = None
        self._unsent = None
        self._sink = []
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """Closes at once and tells whoever waits for the answer."""
        self._break(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Nothing was asked: whatever this is, it must not become the next request's answer.
            self.abort()
            return
        self.heard = True
        if not response.touched:
            response.touched = True
            if data[0] != _H:
                # llhttp would also read RTSP and ICE, and skip empty lines.
                self._break(UpstreamBroken("malformed answer: it does not begin like HTTP"))
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self._done:
                self._break(UpstreamBroken(f"malformed answer: {self._refused or error}"))
                return
        if self._done:
            self._finish(response)
        elif response.parts:
            self._without_body = 0
            self._buffered += len(data)
            response.wake()
            if self._buffered > self._limits.buffer_bytes and response.parts and not self._read_paused:
                self._pause()
        else:
            self._without_body += len(data)
            if self._without_body > self._limits.head_bytes:
                self._break(UpstreamBroken(f"no body byte within {self._limits.head_bytes} bytes of answer"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # It holds this object's methods: a lost connection would otherwise wait for the garbage collector.
        del self._parser
        self._owner.lost(self)
        response = self._response
        if response is None:
            return
        if self._until_close and exc is None:
            self._response = None
            response.completed()
        else:
            when = "in the middle of" if response.status else "before"
            self._break(UpstreamBroken(f"the engine closed the connection {when} its answer"))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._send_more()

    # Callbacks of the parser. After `_done` it is reading something nobody asked for.

    def on_message_begin(self) -> None:
        if self._done:
            self._keep = False
        else:
            self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        # None: the head is complete, these are trailers.
        if self._headers is not None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._done or self._response is None or self._headers is None:
            return
        status = self._parser.get_status_code()
        headers = tuple(self._headers)
        self._headers = None
        if status < 200:
            if status < 100 or status == 101:
                self._refuse(f"status {status}")
            self._interim = True
            return
        if status > 599:
            # No status at all (RFC 9110, 15): clients' libraries have no line for it.
            self._refuse(f"status {status}")
        self._response.status = status
        self._response.headers = headers
        self._until_close = self._framed_by_close(headers)
        if self._head_only:
            # llhttp cannot be told that no body follows, so this connection is not used again.
            self._done = True
            self._sink = []

    def on_body(self, body: bytes) -> None:
        self._sink.append(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._done:
            self._done = True
            self._sink = []
            # Asked for anywhere else, llhttp answers for a message that it has not read.
            self._keep = self._parser.should_keep_alive()

    # Steps

    def _framed_by_close(self, headers: Headers) -> bool:
        until_close = True
        for name, value in headers:
            if name == b"content-length":
                until_close = False
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    self._refuse("a transfer coding other than chunked")
                until_close = False
        return until_close

    def _refuse(self, why: str) -> None:
        self._refused = why
        raise ValueError(why)

    def _send_more(self) -> None:
        """The next slices of a large body, as far as the kernel takes them; called again when it takes more."""
        while self._unsent is not None and not self._write_paused and self._transport is not None:
            piece, rest = self._unsent[:_WRITE_SLICE], self._unsent[_WRITE_SLICE:]
            self._unsent = rest if len(rest) else None
            self._transport.write(piece)

    def _pause(self) -> None:
        if self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._read_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _finish(self, response: RelayResponse) -> None:
        self._response = None
        self._sink = []
        response.completed()
        if self._keep and self._unsent is None and not self._write_paused and self.usable:
            if self._read_paused:
                self._resume()
            self.served += 1
            self._owner.ready(self)
        else:
            self.abort()

    def _break(self, error: UpstreamError) -> None:
        response = self._response
        self.abort()
        if response is not None:
            response.broke(error)
