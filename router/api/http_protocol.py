"""uvicorn's HTTP protocol with a bound on a request's head, stricter framing, and refusals in OpenAI's error shape.

llhttp keeps a head of any length in memory until it ends, and uvicorn answers what it cannot parse in plain text. Two
parties that disagree on where a request ends can be made to see different requests (RFC 9112, 11.2). So what llhttp
lets through and another hop might read otherwise is refused: codings other than a plain ``chunked``, any coding in
HTTP/1.0, several Host fields or none. An offer to upgrade is taken out of the head: llhttp would take the body for
the other protocol's, and nothing is upgraded here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.errors import HeadersTooLarge, InvalidRequest, RouterError


def bounded_http(max_header_bytes: int) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes a protocol with: heads of up to `max_header_bytes`, request line and fields together."""

    def make(*args: Any, **options: Any) -> asyncio.Protocol:
        return BoundedHttp(max_header_bytes, *args, **options)

    return make


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


class BoundedHttp(HttpToolsProtocol):
    def __init__(self, max_header_bytes: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limit = max_header_bytes
        self._in_head = True
        self._head_bytes = 0
        self._too_large = False
        self._refused = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head and not self._head_bytes:
            data = _without_upgrade(data)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._limit and not self._refused:
            self._too_large = True
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_bytes > self._limit:
            # The last read may hold body as well: only now can the head itself be measured.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limit:
                self._too_large = True
                raise ValueError("the head is too large")
        if self.parser.should_upgrade() or not _plainly_framed(self.headers, self.parser.get_http_version()):
            # uvicorn answers what a callback raises like what its parser refuses.
            raise ValueError("the request could be read in two ways")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever its parser refuses."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # Whatever follows the request under way, an answer to it must not get into the other's.
            self.transport.close()
            return
        error: RouterError
        if self._too_large:
            error = HeadersTooLarge(f"The request's head is longer than {self._limit} bytes (server.max_header_bytes).")
        else:
            error = InvalidRequest("The request is not valid HTTP.")
        body = error.body()
        reason = b"Request Header Fields Too Large" if self._too_large else b"Bad Request"
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (error.status, reason, len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn does so only for an orderly end: the timer of a connection that was reset would keep all of it alive.
        self._unset_keepalive_if_required()

    def eof_received(self) -> None:
        if self._refused:
            self.transport.close()
