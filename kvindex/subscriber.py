"""An engine rank's KV events over ZeroMQ: live and replay sockets -> ingest -> index.

Subscribe first, replay after: what is published in between arrives twice and is dropped once, never missed. While a
replay runs, live messages are held back. A reconnect asks for a replay from the last message applied, which proves
whether it is still the same engine process; so does a long silence, since a publisher may drop what it cannot send.

Whatever a peer sends or fails to send, the subscriber goes on: malformed messages are counted, an engine that cannot
be reached or asked is approximate, and its state says why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from kvindex.events import END_OF_REPLAY, MalformedEvents, Message, Tier, decode_frames
from kvindex.index import Mode
from kvindex.ingest import NO_REPLAY, REPLAY_SILENT, Ingest, SourceState
from kvindex.operations import Operation, Resync, apply_operations
from kvindex.sockets import Context, Drain, Pace, new_socket

log = logging.getLogger(__name__)

_SLICE_S = 0.002
_ATTEMPTS = 3
_REPLAY_BUDGET = 12
"""A replay may take this many times the wait for one message; an endless one is given up."""


class EventSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where one engine rank publishes, as its ``/kv_event_sources`` says, with a host in place of ``*``."""

    endpoint_id: str
    url: str
    replay_url: str | None = None
    topic: str = ""
    dp_rank: int = 0
    """Global data-parallel rank; events that say another one are counted, the socket decides."""


class SubscriberIndex(Protocol):
    """The part of a `BlockIndex` that a subscriber writes to."""

    def store(self, endpoint: str, keys: list[int], tier: Tier, /) -> None: ...
    def remove(self, endpoint: str, keys: list[int], tier: Tier, /) -> None: ...
    def clear(self, endpoint: str, tier: Tier | None, /) -> None: ...
    def set_mode(self, endpoint: str, mode: Mode, /) -> None: ...


class SubscriberCounters:
    """What happened on the sockets; what happened in the stream is in `Ingest.counters`."""

    __slots__ = ("connects", "malformed_frames", "messages", "overflows", "replay_failures", "replays")

    def __init__(self) -> None:
        self.connects = 0
        self.messages = 0
        self.malformed_frames = 0
        self.overflows = 0
        """Times that the messages held back during a replay were too many and were dropped."""
        self.replays = 0
        self.replay_failures = 0


class KvEventSubscriber:
    """Follows one source until `aclose`. All of it runs in the loop that called `start`.

    `pace` is to be shared by all subscribers of a loop. `prepare` is awaited once, before the first replay is asked
    for: it may let `ingest` go on from what is known elsewhere. `on_state` is told every change of `state`. `silence_s`
    without a message leads to a replay of the last one. `replay_timeout_s` is the longest wait for the next replayed
    message, per attempt.
    """

    def __init__(
        self,
        source: EventSource,
        ingest: Ingest,
        index: SubscriberIndex,
        context: Context,
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        on_state: Callable[[SourceState], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
        max_held: int = 20_000,
        replay_timeout_s: float = 5.0,
        silence_s: float = 60.0,
    ) -> None:
        self.source = source
        self.counters = SubscriberCounters()
        self._ingest = ingest
        self._index = index
        self._context = context
        self._prepare = prepare
        self._on_state = on_state
        self._clock = clock
        self._wall_clock = wall_clock
        self._pace = pace if pace is not None else Pace()
        self._max_held = max_held
        self._replay_timeout_s = replay_timeout_s
        self._silence_s = silence_s
        self._state = ingest.state
        self._held: deque[Message] = deque()
        self._wanted: Callable[[], list[Operation]] | None = None
        self._resync: Resync | None = None
        self._sync: asyncio.Task[None] | None = None
        self._live: Drain | None = None
        self._monitor: Drain | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._last_message_at: float | None = None
        self._lag: float | None = None

    # What others read

    @property
    def state(self) -> SourceState:
        return self._state

    @property
    def ingest(self) -> Ingest:
        return self._ingest

    @property
    def lag(self) -> float | None:
        """Seconds from the engine's stamp on its newest live message to our applying it, clock skew included."""
        return self._lag

    @property
    def last_event_age(self) -> float | None:
        """Seconds since the last live message; None before the first."""
        return None if self._last_message_at is None else self._clock() - self._last_message_at

    # Life

    def start(self) -> None:
        """Connects. Raises ZMQError for a URL of no valid form; an engine that is not there yet is waited for."""
        socket = new_socket(self._context, zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
        # The monitor first: a handshake that it misses would never be followed by a replay.
        monitor = socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
        try:
            socket.connect(self.source.url)
        except zmq.ZMQError:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
            raise
        self._monitor = Drain(monitor, self._on_monitor, self._pace)
        self._live = Drain(socket, self._on_frames, self._pace)
        self._index.set_mode(self.source.endpoint_id, Mode.APPROXIMATE)
        self._rearm_watch()

    async def aclose(self) -> None:
        """Closes every socket and waits for the replay task; again is fine. The index keeps what it holds."""
        if self._watch is not None:
            self._watch.cancel()
        if self._live is not None:
            self._live.socket.disable_monitor()
            self._live.close()
            self._live = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        while self._sync is not None and not self._sync.done():
            # Until it is done: a cancellation that meets an expiring time-out can be taken for it and swallowed.
            self._sync.cancel()
            await asyncio.wait([self._sync], timeout=0.1)
        self._sync = None

    def resync(self, reason: str) -> None:
        """The engine is, or may be, another process than before: forget what it held and replay from the start."""
        log.info("KV events of %s: resync, %s", self.source.endpoint_id, reason)
        self._want(self._ingest.restarted)

    # Sockets

    def _on_monitor(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] != zmq.Event.HANDSHAKE_SUCCEEDED:
            return
        self.counters.connects += 1
        self._want(self._ingest.start if self.counters.connects == 1 else self._ingest.reconnected)

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = decode_frames(frames)
        except MalformedEvents:
            self.counters.malformed_frames += 1
            return
        self.counters.messages += 1
        self._last_message_at = self._clock()
        if self._sync is not None or not self.counters.connects:
            self._hold(message)
            return
        self._resync = self._apply(self._ingest.live(message))
        self._lag = self._wall_clock() - self._ingest.last_timestamp
        if self._resync is not None:
            # It goes round again after the replay: as a duplicate, or as the first after what is lost.
            self._hold(message)
            self._start_sync()

    def _hold(self, message: Message) -> None:
        if len(self._held) >= self._max_held:
            # The replay brings most of them; whatever it does not will show as a gap.
            self._held.clear()
            self.counters.overflows += 1
        self._held.append(message)

    def _apply(self, operations: list[Operation]) -> Resync | None:
        resync = apply_operations(operations, self._index, self.source.endpoint_id) if operations else None
        if self._ingest.state is not self._state:
            self._publish_state()
        return resync

    def _publish_state(self) -> None:
        self._state = state = self._ingest.state
        self._index.set_mode(self.source.endpoint_id, Mode.EXACT if state.exact else Mode.APPROXIMATE)
        if not state.exact:
            log.warning("KV events of %s: approximate, %s", self.source.endpoint_id, state.reason)
        if self._on_state is not None:
            self._on_state(state)

    # Replay

    def _want(self, begin: Callable[[], list[Operation]]) -> None:
        """Begin a replay as soon as none is running; a restart is not downgraded by a later reconnect."""
        if self._wanted != self._ingest.restarted:
            self._wanted = begin
        if self._sync is None:
            self._start_sync()

    def _start_sync(self) -> None:
        self._sync = asyncio.get_running_loop().create_task(self._synchronize())
        self._sync.add_done_callback(self._on_sync_done)

    def _on_sync_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("KV events of %s: replay task ended", self.source.endpoint_id, exc_info=error)
            self._sync = None
            self._apply(self._ingest.replay_failed("internal error"))

    async def _synchronize(self) -> None:
        """Replays until nothing is asked for and no message is held back any more."""
        if self._prepare is not None:
            prepare, self._prepare = self._prepare, None
            await prepare()
        while True:
            if self._wanted is not None:
                begin, self._wanted = self._wanted, None
                self._resync = self._apply(begin())
            if self._resync is not None:
                self._resync = await self._replay(self._resync)
            elif self._held:
                await self._release_held()
            else:
                # Without an await in between: the next message finds no replay running.
                self._sync = None
                return

    async def _release_held(self) -> None:
        until = time.monotonic() + _SLICE_S
        while self._held and self._resync is None:
            message = self._held[0]
            self._resync = self._apply(self._ingest.live(message))
            if self._resync is None:
                self._held.popleft()
            if time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + _SLICE_S

    async def _replay(self, resync: Resync) -> Resync | None:
        """Carries one Resync out; returns another one if the replay shows that it is needed."""
        if self.source.replay_url is None:
            return self._apply(self._ingest.replay_failed(NO_REPLAY))
        for _ in range(_ATTEMPTS):
            self.counters.replays += 1
            try:
                return await self._replay_once(self.source.replay_url, resync)
            except (TimeoutError, zmq.ZMQError):
                self.counters.replay_failures += 1
        return self._apply(self._ingest.replay_failed(REPLAY_SILENT))

    async def _replay_once(self, url: str, resync: Resync) -> Resync | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Resync | None] = loop.create_future()
        latest = loop.time() + _REPLAY_BUDGET * self._replay_timeout_s

        def on_frames(frames: list[bytes]) -> None:
            if done.done():
                return
            budget.reschedule(min(latest, loop.time() + self._replay_timeout_s))
            try:
                message = decode_frames(_without_envelope(frames))
            except MalformedEvents:
                self.counters.malformed_frames += 1
                return
            if message.sequence == END_OF_REPLAY:
                done.set_result(self._apply(self._ingest.replay_ended()))
            elif (again := self._apply(self._ingest.replayed(message))) is not None:
                done.set_result(again)

        async with asyncio.timeout(self._replay_timeout_s) as budget:
            drain = Drain(new_socket(self._context, zmq.DEALER), on_frames, self._pace)
            try:
                drain.socket.connect(url)
                drain.socket.send_multipart([b"", resync.from_sequence.to_bytes(8, "big")], zmq.NOBLOCK)
                drain.poke()
                return await done
            finally:
                drain.close()

    # Silence

    def _rearm_watch(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self._silence_s, self._on_watch)

    def _on_watch(self) -> None:
        age = self.last_event_age
        if self.counters.connects and self._sync is None:
            if self._state.reason == REPLAY_SILENT:
                self._want(self._ingest.restarted)
            elif age is None or age >= self._silence_s:
                self._want(self._ingest.reconnected)
        self._rearm_watch()


def _without_envelope(frames: list[bytes]) -> list[bytes]:
    """A replayed message without its empty first frame; older engines leave the topic out."""
    rest = frames[1:] if frames and not frames[0] else frames
    return [b"", *rest] if len(rest) == 2 else rest
