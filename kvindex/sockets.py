"""ZeroMQ sockets in an asyncio loop, without a task or a future per message.

A ZeroMQ descriptor is edge-triggered: it says "something changed", and stays silent until everything is read. So each
wake-up reads to EAGAIN, in time slices between which the loop serves others; hundreds of engines share one slice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import zmq

MAX_SOCKETS = 65_536
_OPTIONS = {
    zmq.LINGER: 0,
    zmq.IPV6: 1,
    zmq.RCVHWM: 100_000,
    zmq.MAXMSGSIZE: 64 << 20,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 5_000,
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,
}
"""Times in milliseconds. vLLM publishes with a high-water mark of 100,000 messages, and so do we receive."""

Context = zmq.Context[zmq.SyncSocket]
Socket = zmq.SyncSocket


def event_context() -> Context:
    """A context with room for thousands of engines (the default ends at 1,023 sockets); its caller terminates it."""
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, min(MAX_SOCKETS, int(context.get(zmq.SOCKET_LIMIT))))
    return context


def new_socket(context: Context, kind: int) -> Socket:
    """A socket that reconnects by itself, notices dead peers, and never delays a close; not connected yet."""
    socket: Socket = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.setsockopt(option, value)
    return socket


class Pace:
    """The time all drains of one loop may take a turn of it together, shared out in their order of arrival."""

    def __init__(self, slice_s: float = 0.002) -> None:
        self._slice_s = slice_s
        self._ready: deque[Drain] = deque()
        self._turn: asyncio.Handle | None = None

    def add(self, drain: Drain) -> None:
        self._ready.append(drain)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._turn = None
        now = time.monotonic()
        until = now + self._slice_s
        try:
            while self._ready and now < until:
                # A quarter of the slice each: one busy engine does not starve the others.
                self._ready.popleft().read(min(until, now + self._slice_s / 4))
                now = time.monotonic()
        finally:
            if self._ready and self._turn is None:
                self._turn = asyncio.get_running_loop().call_soon(self._run)


class Drain:
    """Hands every multipart message of a socket to `on_message`, at the pace given; owns the socket."""

    def __init__(self, socket: Socket, on_message: Callable[[list[bytes]], None], pace: Pace) -> None:
        self.socket = socket
        self._on_message = on_message
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._queued = False
        self._closed = False
        self._loop.add_reader(self._fd, self.poke)
        self.poke()

    def poke(self) -> None:
        """Reads soon. To be called after every send too: sending may swallow the descriptor's edge."""
        if not self._queued and not self._closed:
            self._queued = True
            self._pace.add(self)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self.socket.close(linger=0)

    def read(self, until: float) -> None:
        """Reads to EAGAIN, or past `until` (monotonic seconds) and then again at the next turn."""
        self._queued = False
        receive, on_message = self.socket.recv_multipart, self._on_message
        more = True
        try:
            while more and not self._closed:
                try:
                    frames = receive(zmq.NOBLOCK)
                except zmq.Again:
                    more = False
                else:
                    on_message(frames)
                    if time.monotonic() >= until:
                        break
        finally:
            if more:
                self.poke()
