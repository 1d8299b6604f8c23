"""What engines send: event streams in any pieces reach the client byte for byte, and no KV event does harm."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvindex.events import MalformedEvents, Message, decode_frames
from kvindex.ingest import Ingest
from kvindex.memory import MemoryIndex
from kvindex.operations import apply_operations
from tests.support.asgi import AsgiClient
from tests.support.field import CHAT, streamed
from tests.support.fuzz import World, share
from tests.support.rawclient import dumped
from tests.support.stub_engine import DONE, SSE, Call, finish, role, token

EVENTS = st.lists(
    st.sampled_from([role(), token(0), token(1), finish(), b": comment\n\n", b"data: {bad\n\n", b"event: x\nid: 1\n\n"])
    | st.binary(max_size=30),
    max_size=8,
)


@share(0.1)
@given(events=EVENTS, cuts=st.sets(st.integers(1, 600), max_size=12), ends=st.booleans())
def test_any_split_of_a_stream_reaches_the_client_as_it_was(
    world: World, events: list[bytes], cuts: set[int], ends: bool
) -> None:
    wire = b"".join([token(0), *events, DONE if ends else b""])
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]

    async def script(call: Call) -> None:
        del call.engine.calls[:-50]
        await call.head(200, SSE, length=len(wire))
        for start, end in pairwise(edges):
            await call.peer.send(wire[start:end])

    async def ask() -> bytes:
        answer = await AsgiClient(world.app.asgi).request("POST", CHAT, body=dumped(streamed()))
        assert answer.status == 200
        return answer.body

    engine = world.at.engine
    before, engine.script = engine.script, script
    try:
        assert world.run(ask()).startswith(wire)
    finally:
        engine.script = before


HASHES = st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=32) | st.none() | st.text(max_size=3)
EVENT_MEMBERS = {
    "type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other", "", 5, None]),
    "block_hashes": st.lists(HASHES, max_size=4) | HASHES,
    "parent_block_hash": HASHES,
    "token_ids": st.lists(st.integers(-1, 2**33), max_size=40) | HASHES,
    "block_size": st.sampled_from([16, 4, 0, -1, 2**40, "16", None, 1.5]),
    "lora_id": HASHES,
    "lora_name": HASHES,
    "medium": st.sampled_from(["GPU", "CPU", "disk", "", None, 7]),
    "extra_keys": st.lists(st.none() | st.lists(HASHES, max_size=2), max_size=4) | HASHES,
    "group_idx": HASHES,
}
EVENT = st.fixed_dictionaries({}, optional=EVENT_MEMBERS) | st.lists(st.one_of(*EVENT_MEMBERS.values()), max_size=9)
PAYLOADS = st.tuples(st.floats() | HASHES, st.lists(EVENT, max_size=4) | HASHES, HASHES).map(
    lambda batch: msgspec.msgpack.encode(list(batch))
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    payload = draw(PAYLOADS | st.binary(max_size=60))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(payload)))
        payload = (
            payload[:at]
            + draw(st.binary(max_size=4) | st.just(b"\x91" * 3000))
            + payload[at + draw(st.integers(0, 3)) :]
        )
    return payload


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["live", "live", "live", "replayed", "replay_ended", "start", "reconnected", "failed"]),
        st.integers(0, 6).map(lambda number: number.to_bytes(8, "big")) | st.binary(max_size=9),
        payloads(),
    ),
    min_size=1,
    max_size=6,
)


@share(0.15)
@given(STEPS)
def test_no_kv_event_does_harm(steps: list[tuple[str, bytes, bytes]]) -> None:
    ingest, index = Ingest("model", 16), MemoryIndex(lambda: 0.0, max_blocks=1000)
    for step, sequence, payload in steps:
        if step in ("live", "replayed"):
            try:
                message: Message = decode_frames([b"topic", sequence, payload])
            except MalformedEvents:
                continue
            operations = ingest.live(message) if step == "live" else ingest.replayed(message)
        elif step == "replay_ended":
            operations = ingest.replay_ended()
        elif step == "failed":
            operations = ingest.replay_failed("silent")
        else:
            operations = ingest.start() if step == "start" else ingest.reconnected()
        apply_operations(operations, index, "e")
    assert sum(sum(tiers.values()) for tiers in index.stats().blocks.values()) <= 1000
