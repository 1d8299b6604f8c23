"""EventPublisher: one rank's KV events on a ZMQ PUB socket, with a bounded buffer that a ROUTER socket replays.

Live messages are ``[topic, sequence as 8 bytes big endian, payload]``. A peer that sends ``[b"", first sequence]`` to
the replay socket gets ``[b"", topic, sequence, payload]`` for each kept batch from there on and ``[b"", b"", 2**64 - 1,
b""]`` at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.asyncio

from loadtest.simulator.events import CacheEvent, EventCodec
from loadtest.simulator.settings import in_url

logger = logging.getLogger(__name__)

END_OF_REPLAY = (2**64 - 1).to_bytes(8, "big")
HIGH_WATER_MARK = 100_000


class EventPublisher:
    """Bound when made; `start` begins to serve replays, `aclose` ends everything."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        codec: EventCodec,
        *,
        host: str,
        port: int,
        replay_port: int,
        topic: str,
        rank: int,
        buffer_steps: int,
    ) -> None:
        self.topic = topic
        self.rank = rank
        self.buffer_steps = buffer_steps
        self._codec = codec
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._sequence = 0
        self._task: asyncio.Task[None] | None = None
        # A plain socket: publishing never waits, so it needs no coroutine.
        self._pub = zmq.Socket(context, zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        try:
            self.port = _bind(self._pub, host, port)
            self.replay_port = _bind(self._router, host, replay_port)
        except zmq.ZMQError:
            self._pub.close()
            self._router.close()
            raise

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve_replays())

    def publish(self, timestamp: float, events: Sequence[CacheEvent]) -> None:
        """Send one batch to whoever listens, and keep it for replay."""
        sequence = self._sequence.to_bytes(8, "big")
        payload = self._codec.encode(timestamp, events, self.rank)
        self._sequence += 1
        self._kept.append((sequence, payload))
        self._pub.send_multipart((self.topic.encode(), sequence, payload))

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pub.close()
        self._router.close()

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                logger.warning("replay request of %d frames ignored", len(frames))
                continue
            peer, first = frames[0], int.from_bytes(frames[2], "big")
            topic = self.topic.encode()
            for sequence, payload in list(self._kept):
                if int.from_bytes(sequence, "big") >= first:
                    await self._router.send_multipart((peer, b"", topic, sequence, payload))
            await self._router.send_multipart((peer, b"", b"", END_OF_REPLAY, b""))


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> int:
    socket.setsockopt(zmq.IPV6, int(":" in host))
    address = f"tcp://{in_url(host)}"
    if port:
        socket.bind(f"{address}:{port}")
        return port
    return int(socket.bind_to_random_port(address))
