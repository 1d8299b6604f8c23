"""TLS before HTTP: a connection from its acceptance to the end of its handshake, bounded like what comes after.

A server's own TLS makes a protocol's connection only when the handshake is over: until then nobody counts it, and who
opens connections and says nothing would hold them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import cast


class _Early(asyncio.Protocol):
    """What comes between the end of the handshake and the protocol's taking over."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.ended = False
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Handshakes:
    """The handshakes under way. `context` is every connection's; `seconds` is asked at each one's beginning."""

    def __init__(self, context: ssl.SSLContext, seconds: Callable[[], float]) -> None:
        self.context = context
        self.seconds = seconds
        self.under_way: set[Handshake] = set()

    def end(self) -> None:
        for handshake in list(self.under_way):
            handshake.end()


class Handshake(asyncio.Protocol):
    """One connection's. `then` takes it over; one more than `room` says there is is dropped without a word."""

    def __init__(self, owner: Handshakes, then: asyncio.Protocol, room: Callable[[], bool]) -> None:
        self._owner = owner
        self._then = then
        self._room = room
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = plain = cast(asyncio.Transport, transport)
        if not self._room():
            # An answer would need the very handshake that there is no room for.
            plain.abort()
            return
        plain.pause_reading()
        self._owner.under_way.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake(plain), name="TLS handshake")

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, plain: asyncio.Transport) -> None:
        early, owner = _Early(), self._owner
        try:
            # Who speaks no TLS, shows no certificate that is trusted, leaves or is too slow is a client that is gone.
            with contextlib.suppress(OSError):
                secured = await asyncio.get_running_loop().start_tls(
                    *(plain, early, owner.context), server_side=True, ssl_handshake_timeout=owner.seconds()
                )
                if secured is not None and not early.lost:
                    self._hand_over(secured, early)
                    return
            plain.abort()
        except asyncio.CancelledError:
            plain.abort()
            raise
        finally:
            owner.under_way.discard(self)

    def _hand_over(self, secured: asyncio.Transport, early: _Early) -> None:
        then = self._then
        self._owner.under_way.discard(self)
        secured.set_protocol(then)
        then.connection_made(secured)
        for data in early.data:
            then.data_received(data)
        if early.ended:
            then.eof_received()
