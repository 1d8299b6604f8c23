"""The subscriber over real ZeroMQ sockets: replay, gaps, restarts, garbage, and nothing left open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import zmq

from kvindex import Match, MemoryIndex, Mode, Tier, block_hashes, chain_root
from kvindex.ingest import EXACT, NO_REPLAY, REPLAY_SILENT, TOO_SHORT, Ingest, SourceState
from kvindex.sockets import Context, Pace, event_context
from kvindex.subscriber import EventSource, KvEventSubscriber
from tests.support.kvindex import CLEARED, Clock, removed, stored
from tests.support.kvindex_publisher import TOPIC, FakePublisher

MODEL, B = "m", 4
TOKENS = list(range(24))
KEYS = block_hashes(TOKENS, B, chain_root(MODEL))
HASHES = [1, 2, 3, 4, 5, 6]
ALL = stored(HASHES, TOKENS, B)


@pytest.fixture
def engine() -> Iterator[FakePublisher]:
    with FakePublisher() as publisher:
        yield publisher


@pytest.fixture
def context() -> Iterator[Context]:
    context = event_context()
    yield context
    # Hangs, and so fails by time-out, if a socket was left open.
    context.term()


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex(Clock())


class Following:
    """Subscribers that are closed at the end of the test, and the states they went through."""

    def __init__(self, context: Context, index: MemoryIndex) -> None:
        self.context = context
        self.index = index
        self.states: list[SourceState] = []
        self.subscribers: list[KvEventSubscriber] = []
        self.pace = Pace(0.001)

    def __call__(self, source: EventSource, *, timeout_s: float = 5.0, silence_s: float = 60.0) -> KvEventSubscriber:
        subscriber = KvEventSubscriber(
            source,
            Ingest(MODEL, B),
            self.index,
            self.context,
            on_state=self.states.append,
            pace=self.pace,
            replay_timeout_s=timeout_s,
            silence_s=silence_s,
        )
        subscriber.start()
        self.subscribers.append(subscriber)
        return subscriber


@pytest.fixture
async def follow(context: Context, index: MemoryIndex) -> AsyncIterator[Following]:
    following = Following(context, index)
    yield following
    for subscriber in following.subscribers:
        await subscriber.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def held(index: MemoryIndex, endpoint: str = "engine") -> int:
    return index.stats().blocks.get(endpoint, {}).get(Tier.DEVICE, 0)


async def test_what_was_published_before_and_after_the_subscription_is_there(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    engine.publish(stored(HASHES[:2], TOKENS[: 2 * B], B))
    subscriber = follow(engine.source())
    assert index.mode("engine") is Mode.APPROXIMATE
    await until(lambda: subscriber.state == EXACT)
    assert index.match(KEYS) == {"engine": Match(2, 2)}
    engine.publish(stored(HASHES[2:], TOKENS[2 * B :], B, parent=2))
    await until(lambda: index.match(KEYS) == {"engine": Match(6, 6)})
    assert index.mode("engine") is Mode.EXACT
    assert follow.states == [EXACT]
    assert engine.requests == [0]
    assert subscriber.last_event_age is not None
    assert subscriber.last_event_age >= 0
    assert subscriber.lag is not None


async def test_lost_messages_are_fetched_from_the_replay(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == EXACT)
    engine.publish(stored(HASHES[:2], TOKENS[: 2 * B], B))
    await until(lambda: held(index) == 2)
    engine.publish(stored([3], TOKENS[2 * B : 3 * B], B, parent=2), sent=False)
    engine.publish(removed([3]), sent=False)
    engine.publish(stored([3, 4], TOKENS[2 * B : 4 * B], B, parent=2))
    await until(lambda: held(index) == 4)
    assert subscriber.state == EXACT
    assert engine.requests == [0, 0]
    assert subscriber.ingest.counters.gaps == 1


async def test_a_replay_in_the_older_form_without_topics(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    engine.with_topic = False
    engine.publish(ALL)
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == EXACT)
    assert held(index) == 6


async def test_a_restarted_engine_is_noticed_by_the_reconnect(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == EXACT)
    engine.publish(ALL, timestamp=1.0)
    engine.publish(timestamp=2.0)
    await until(lambda: subscriber.ingest.next_sequence == 2)
    engine.restart()
    for at in range(3):
        # As far as before, and further: the count alone tells nothing.
        engine.publish(stored([90 + at], [90 + at] * B, B), timestamp=10.0 + at)
    await until(lambda: subscriber.ingest.next_sequence == 3 and subscriber.state == EXACT)
    assert index.match(KEYS) == {}
    assert held(index) == 3
    assert subscriber.ingest.counters.restarts == 1


async def test_a_restart_told_by_the_caller_clears_and_replays(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    engine.publish(ALL)
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == EXACT)
    subscriber.resync("process start changed")
    subscriber.resync("process start changed")
    await until(lambda: engine.requests == [0, 0] and subscriber.state == EXACT)
    assert held(index) == 6
    assert [state.reason for state in follow.states] == ["", "starting", ""]


async def test_garbage_is_counted_and_the_next_good_event_is_applied(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == EXACT)
    for frames in (
        [TOPIC],
        [TOPIC, b""],
        [TOPIC, b"", b""],
        [TOPIC, b"\0" * 4, b"x"],
        [TOPIC, os.urandom(8), os.urandom(50)],
        [TOPIC, b"\0" * 8, b"\xc1"],
        [TOPIC, b"\0" * 8, bytes(20 << 20)],
    ):
        engine.send(*frames)
    engine.publish(ALL)
    await until(lambda: held(index) == 6 and subscriber.counters.malformed_frames >= 5)
    assert subscriber.state == EXACT


async def test_without_a_replay_socket_the_stream_is_exact_only_from_its_beginning(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    subscriber = follow(engine.source(replay=False))
    await until(lambda: subscriber.state == SourceState(False, NO_REPLAY) and engine.is_heard())
    engine.publish(ALL)
    await until(lambda: held(index) == 6)
    assert subscriber.state == EXACT
    engine.publish(sent=False)
    engine.publish(stored([7], TOKENS[:B], B))
    await until(lambda: subscriber.ingest.next_sequence == 3)
    assert subscriber.state == SourceState(False, NO_REPLAY)
    assert index.match(KEYS) == {"engine": Match(1, 1)}
    assert index.mode("engine") is Mode.APPROXIMATE


async def test_a_silent_replay_socket_is_given_up_and_asked_again_later(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    engine.publish(ALL)
    engine.answers = False
    subscriber = follow(engine.source(), timeout_s=0.1, silence_s=0.3)
    await until(lambda: subscriber.state == SourceState(False, REPLAY_SILENT))
    assert subscriber.counters.replay_failures >= 3
    engine.answers = True
    await until(lambda: subscriber.state == EXACT)
    assert held(index) == 6


async def test_a_replay_that_does_not_reach_back_is_approximate_until_the_engine_clears(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    engine.publish(ALL)
    engine.publish(stored([7], TOKENS[:B], B))
    engine.forget_before = 1
    subscriber = follow(engine.source())
    await until(lambda: subscriber.state == SourceState(False, TOO_SHORT))
    assert held(index) == 1
    engine.publish(CLEARED)
    await until(lambda: subscriber.state == EXACT)
    assert held(index) == 0


async def test_silence_leads_to_a_replay_that_finds_what_was_dropped(
    engine: FakePublisher, follow: Following, index: MemoryIndex
) -> None:
    subscriber = follow(engine.source(), silence_s=0.2)
    await until(lambda: subscriber.state == EXACT)
    engine.publish(ALL, sent=False)
    await until(lambda: held(index) == 6)
    assert subscriber.state == EXACT


async def test_an_engine_that_is_not_there_is_waited_for_and_closing_does_not_hang(follow: Following) -> None:
    subscriber = follow(EventSource(endpoint_id="e", url="tcp://127.0.0.1:9", replay_url="tcp://127.0.0.1:9"))
    await asyncio.sleep(0.05)
    assert subscriber.state == SourceState(False, "starting")
    assert subscriber.last_event_age is None


async def test_a_url_of_no_valid_form_is_refused_and_leaves_nothing_open(context: Context, index: MemoryIndex) -> None:
    subscriber = KvEventSubscriber(EventSource(endpoint_id="e", url="nonsense"), Ingest(MODEL, B), index, context)
    with pytest.raises(zmq.ZMQError):
        subscriber.start()
    await subscriber.aclose()


async def test_many_sources_share_a_context_and_a_burst_is_taken_in_slices(
    follow: Following, index: MemoryIndex
) -> None:
    engines = [FakePublisher() for _ in range(4)]
    try:
        for number, engine in enumerate(engines):
            follow(engine.source(endpoint_id=f"e{number}"))
        await until(lambda: all(each.state == EXACT for each in follow.subscribers))
        for engine in engines:
            for at in range(500):
                engine.publish(stored([at], [at] * B, B))
        await until(lambda: all(held(index, f"e{number}") == 500 for number in range(4)))
        assert [each.ingest.counters.gaps for each in follow.subscribers] == [0] * 4
    finally:
        for engine in engines:
            engine.close()


async def test_closing_during_a_replay_ends_it(engine: FakePublisher, follow: Following) -> None:
    engine.answers = False
    subscriber = follow(engine.source())
    await until(lambda: engine.requests == [0])
    await subscriber.aclose()
    assert subscriber.state == SourceState(False, "starting")


def test_the_context_has_room_for_thousands_of_engines(context: Context) -> None:
    assert context.get(zmq.MAX_SOCKETS) >= 60_000
