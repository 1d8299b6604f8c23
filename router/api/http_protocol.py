"""uvicorn's HTTP protocol with bounds on what a client may hold (bytes of a head, time, connections), stricter framing,
and refusals in OpenAI's error shape.

llhttp keeps a head of any length in memory until it ends, uvicorn waits without end for the rest of a head or a body
and for a client to take its answer, and it answers what it cannot parse in plain text. No timer is set for a request:
`Connections.run` looks at every connection once in a while, and all times are as of its last look, so a limit is kept
to within `LOOK_S`.

Two parties that disagree on where a request ends can be made to see different requests (RFC 9112, 11.2). So what llhttp
lets through and another hop might read otherwise is refused: codings other than a plain ``chunked``, any coding in
HTTP/1.0, several Host fields or none. An offer to upgrade is taken out of the head: llhttp would take the body for
the other protocol's, and nothing is upgraded here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router.api.tls_handshake import Handshake, Handshakes
from router.errors import HeadersTooLarge, InvalidRequest, Overloaded, RequestTimeout, RouterError

LOOK_S = 1.0

REFUSED_WITH = "kvrouter.refused_with"
"""Member of a request's scope: the status that it was refused with here while its body was still awaited."""

_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*", re.IGNORECASE)


def _without_upgrade(data: bytes) -> bytes:
    """`data`, which begins with a head, without the head's Upgrade fields, if the head is whole."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or _UPGRADE.search(data, 0, end) is None:
        return data
    return _UPGRADE.sub(b"", data[:end]) + data[end:]


def _plainly_framed(headers: Sequence[tuple[bytes, bytes]], version: str) -> bool:
    """Whether everybody reads the same framing and the same host out of these fields."""
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            return False
    return hosts == 1 or (hosts == 0 and version == "1.0")


_LINGER_S = 1.0
"""How long a refused client may go on sending before the connection is closed: closed at once, with unread bytes, it
would be reset, and the client might never see why."""

_UNASKED_BYTES = 1024 * 1024
"""How much of a body may follow its answer: a client that has not read a refusal yet may go on for a while."""

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
}


_QUIET = logging.getLogger(f"{__name__}.uvicorn")
_QUIET.setLevel(logging.ERROR)
"""uvicorn warns of each request that it cannot parse: anybody could fill the log."""


class ClientLimits(NamedTuple):
    """Sizes in bytes, times in seconds."""

    header_bytes: int = 64 * 1024
    """A request's head, request line and fields together."""
    head_s: float = 30.0
    """From a head's first byte (of the first request: from the connection's beginning) to its last."""
    body_idle_s: float = 30.0
    """Between two pieces of a body."""
    body_s: float = 600.0
    """From a head's end to its body's."""
    send_s: float = 120.0
    """How long a client may take nothing of what waits for it."""
    connections: int = 16384


class Connections:
    """Makes the protocol of each connection (what uvicorn calls as it would the class), and looks after all of them.

    `tls`: clients speak it; the server itself must not.
    """

    def __init__(self, limits: ClientLimits, tls: ssl.SSLContext | None = None) -> None:
        self.limits = limits
        self._handshakes = None if tls is None else Handshakes(tls, lambda: self.limits.head_s)
        self.now = asyncio.get_running_loop().time()
        """Loop time of the last look."""
        self.open: set[BoundedHttp] = set()

    def __call__(self, *args: Any, **options: Any) -> asyncio.Protocol:
        http = BoundedHttp(self, *args, **options)
        return http if self._handshakes is None else Handshake(self._handshakes, http, self._has_room)

    @property
    def count(self) -> int:
        """Connections, those whose handshake is not over included."""
        return len(self.open) + (0 if self._handshakes is None else len(self._handshakes.under_way))

    def _has_room(self) -> bool:
        return self.count < self.limits.connections

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.look(loop.time())
        finally:
            if self._handshakes is not None:
                self._handshakes.end()

    def look(self, now: float) -> None:
        """Ends what has taken too long as of `now`."""
        self.now = now
        for connection in list(self.open):
            connection.look(now)


class BoundedHttp(HttpToolsProtocol):
    def __init__(self, owner: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _QUIET
        self._owner = owner
        self._limits = owner.limits
        self._in_head = True
        self._in_body = False
        """Of the latest exchange; neither in a head nor in a body while a head is judged."""
        self._head_bytes = 0
        self._framing = 0
        """Bytes since the last that were a body's: sizes of chunks, what is said beside them, trailers."""
        self._unasked = 0
        """Bytes of a body whose answer is given already."""
        self._began = owner.now
        """When the head, or the body after it, did."""
        self._heard = owner.now
        self._unsent = 0
        self._stuck_since: float | None = None
        self._refused = False
        self._excuse: RouterError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._owner.open.add(self)
        if self._owner.count > self._limits.connections:
            most = self._limits.connections
            self._refuse(Overloaded(f"The router has {most} connections already (server.max_connections)."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.open.discard(self)
        super().connection_lost(exc)
        # uvicorn does so only for an orderly end: the timer of a connection that was reset would keep all of it alive.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._heard = self._owner.now
        if self._in_head and not self._head_bytes:
            data = _without_upgrade(data)
        if self._in_head:
            if not self._head_bytes:
                self._began = self._owner.now
            self._head_bytes += len(data)
        else:
            self._framing += len(data)
            if self._in_body and self._latest_is_answered():
                self._unasked += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._limits.header_bytes and not self._refused:
            self._excuse = self._too_large()
            self.send_400_response("")
        elif self._in_body and not self._refused:
            if self._framing > self._limits.header_bytes:
                self._excuse = HeadersTooLarge(
                    f"The request's body has more than {self._limits.header_bytes} bytes beside its content "
                    "(server.max_header_bytes)."
                )
                self.send_400_response("")
            elif self._unasked > _UNASKED_BYTES:
                self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields behind the body are nobody's: whoever looked at the head has looked already.
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._began = self._owner.now
        self._in_body = False
        if self._head_bytes > self._limits.header_bytes:
            # The last read may hold body as well: only now can the head itself be measured.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limits.header_bytes:
                self._excuse = self._too_large()
                raise ValueError("the head is too large")
        if self.parser.should_upgrade() or not _plainly_framed(self.headers, self.parser.get_http_version()):
            # uvicorn answers what a callback raises like what its parser refuses.
            raise ValueError("the request could be read in two ways")
        super().on_headers_complete()
        self._in_body = True

    def on_message_complete(self) -> None:
        self._in_head = True
        self._in_body = False
        self._head_bytes = self._framing = self._unasked = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever its parser refuses."""
        self._refuse(self._excuse or InvalidRequest("The request is not valid HTTP."))

    def eof_received(self) -> None:
        """Who closes its sending side is taken to be gone: HTTP's clients do so when they leave."""
        if self._refused:
            self.transport.close()

    def look(self, now: float) -> None:
        """Ends the connection if its client has taken too long as of `now`."""
        if self._is_stuck(now):
            # A close would wait for the client to take what is left.
            self.transport.abort()
            return
        if self._refused or self.transport.is_closing():
            return
        limits = self._limits
        if self.flow.read_paused:
            # Not the client's doing: nobody takes what it has sent.
            self._heard = now
        elif not self._in_head:
            if now - self._heard > limits.body_idle_s:
                self._refuse(
                    RequestTimeout(
                        f"No more of the request's body came for {limits.body_idle_s:g} s (server.body_idle_timeout_s)."
                    )
                )
            elif now - self._began > limits.body_s:
                self._refuse(
                    RequestTimeout(f"The request's body took longer than {limits.body_s:g} s (server.body_timeout_s).")
                )
        elif self._head_bytes:
            if now - self._began > limits.head_s:
                self._refuse(
                    RequestTimeout(f"The request's head took longer than {limits.head_s:g} s (server.head_timeout_s).")
                )
        elif self._latest() is None and now - self._began > limits.head_s:
            self.transport.close()

    def _is_stuck(self, now: float) -> bool:
        """Something waits for the client, nothing more is added to it, and the client takes nothing."""
        unsent = self.transport.get_write_buffer_size()
        waited, self._unsent = self._unsent, unsent
        cycle = self._latest()
        adding = cycle is not None and not cycle.response_complete and not self.flow.write_paused
        if not unsent or unsent < waited or (adding and not self.transport.is_closing()):
            self._stuck_since = None
            return False
        if self._stuck_since is None:
            self._stuck_since = now
        return now - self._stuck_since > self._limits.send_s

    def _latest(self) -> RequestResponseCycle | None:
        """The latest request that has a head; None before the first, whatever uvicorn's annotation says."""
        return self.cycle

    def _latest_is_answered(self) -> bool:
        cycle = self._latest()
        return cycle is not None and cycle.response_complete

    def _too_large(self) -> RouterError:
        most = self._limits.header_bytes
        return HeadersTooLarge(f"The request's head is longer than {most} bytes (server.max_header_bytes).")

    def _refuse(self, error: RouterError) -> None:
        """Answers with `error`, if nothing else is being answered, and closes."""
        self._refused = True
        cycle = self._latest()
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline or not cycle.more_body:
                # Whatever follows the request under way, an answer to it must not get into the other's.
                self.transport.close()
                return
            # It is this request that is wrong: who waits for the rest of its body is told that nobody is there.
            cast(dict[str, Any], cycle.scope)[REFUSED_WITH] = error.status
            cycle.disconnected = True
            cycle.message_event.set()
        elif self._in_body:
            # The rest of a body whose answer is given already.
            self.transport.close()
            return
        body = error.body()
        head = b"HTTP/1.1 %d %b\r\n" % (error.status, _REASONS[error.status])
        fields = b"".join(b"%b: %b\r\n" % field for field in error.headers())
        self.transport.write(b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (head, fields, len(body), body))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()
