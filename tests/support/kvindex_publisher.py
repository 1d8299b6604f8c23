"""An engine's event sockets without the engine: a PUB socket, and a ROUTER that replays what was published."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zmq

from kvindex.events import Message
from kvindex.subscriber import EventSource
from tests.support.kvindex import message

TOPIC = b"kv@fake@tiny"


class FakePublisher:
    """Speaks vLLM's protocol on ephemeral loopback ports.

    `forget_before` is the first sequence its replay still has; `answers` False leaves replay requests unanswered;
    `with_topic` False leaves the topic out of replayed messages, as older engines do.
    """

    def __init__(self) -> None:
        self.forget_before = 0
        self.answers = True
        self.with_topic = True
        self.requests: list[int] = []
        self.sequence = 0
        self._published: list[Message] = []
        self._subscriptions = 0
        self._context: zmq.Context[zmq.SyncSocket] = zmq.Context()
        self._pub = self._bind(zmq.XPUB, "tcp://127.0.0.1:*")
        self._router = self._bind(zmq.ROUTER, "tcp://127.0.0.1:*")
        self.url = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._serve()

    def source(self, *, replay: bool = True, endpoint_id: str = "engine") -> EventSource:
        return EventSource(
            endpoint_id=endpoint_id,
            url=self.url,
            replay_url=self.replay_url if replay else None,
            topic=TOPIC.decode(),
        )

    def publish(self, *events: Any, sent: bool = True, timestamp: float | None = None) -> None:
        """One batch; with `sent` False it is lost on the way but kept for the replay."""
        each = message(self.sequence, *events, timestamp=timestamp)
        self.sequence += 1
        self._published.append(each)
        if sent:
            self.send(TOPIC, each.sequence.to_bytes(8, "big"), each.payload)

    def is_heard(self) -> bool:
        """Somebody subscribes: what is published from now on arrives. Without a replay nothing else does."""
        while self._pub.poll(0):
            self._subscriptions += 1 if self._pub.recv()[:1] == b"\1" else -1
        return self._subscriptions > 0

    def send(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def restart(self) -> None:
        """Another incarnation on the same ports: everything it knew is gone, and it counts from 0."""
        self._stop()
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._published, self.sequence = [], 0
        self._pub = self._bind(zmq.XPUB, self.url)
        self._router = self._bind(zmq.ROUTER, self.replay_url)
        self._serve()

    def close(self) -> None:
        self._stop()
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _bind(self, kind: int, url: str) -> zmq.SyncSocket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        _until(lambda: _bound(socket, url))
        return socket

    def _serve(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._answer_replays, daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _answer_replays(self) -> None:
        while not self._stopping.is_set():
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.requests.append(first)
            if not self.answers:
                continue
            for each in list(self._published):
                if each.sequence >= max(first, self.forget_before):
                    topic = [TOPIC] if self.with_topic else []
                    frames = [client, b"", *topic, each.sequence.to_bytes(8, "big"), each.payload]
                    self._router.send_multipart(frames)
            self._router.send_multipart([client, b"", b"", b"\xff" * 8, b""])


def _bound(socket: zmq.SyncSocket, url: str) -> bool:
    try:
        socket.bind(url)
    except zmq.ZMQError as error:
        if error.errno != zmq.EADDRINUSE:
            raise
        return False
    return True


def _until(condition: Callable[[], bool]) -> None:
    """A closed ZeroMQ socket gives its port back from another thread, a moment later."""
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.02)
    raise TimeoutError
