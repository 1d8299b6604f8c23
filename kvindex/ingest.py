"""One engine rank's event messages -> operations on an index, or a Resync. PURE.

The state machine of a source. Messages carry a sequence; what repeats is dropped, what is missing is asked of the
engine's replay socket, and what cannot be had again empties the endpoint and makes it approximate: never guess.

A restarted engine counts from 0 again, and may by then have passed the old count and look like a mere gap. So a
replay after a gap starts at the last message applied: the same engine answers it with the same timestamp, another
incarnation does not. A late message of a low sequence with a newer timestamp gives a restart away too, and whoever
watches ``process_start_time_seconds`` calls `restarted`.

The caller owns the sockets: it carries a returned Resync out by feeding what the replay socket answers to `replayed`
and then calling `replay_ended` (or `replay_failed`), and meanwhile holds live messages back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvindex.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    MalformedEvents,
    Message,
    Tier,
)
from kvindex.events import decode_events as decode
from kvindex.hashing import chain_root
from kvindex.journal import At, Journal, Saved, Unheard
from kvindex.keymap import KeyMap, Unindexable, UnknownParent
from kvindex.operations import Operation, OperationLog, Resync

_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache groups whose blocks all have to be there for a prefix hit."""


class SourceState(msgspec.Struct, frozen=True):
    """Whether what the index holds of this rank is all that the engine said."""

    exact: bool
    reason: str
    """Why not, a short word from a bounded set; empty when exact."""


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    chain: tuple[int, int]
    """What keys start from, and tokens a block: keys of another chain say nothing here."""
    resumable: bool
    engine_block_size: int | None
    group: int | None
    far_tiers_seen: bool


TOO_SHORT = "replay does not reach back"
HOLE = "replay has a hole"
NO_REPLAY = "no replay socket"
REPLAY_SILENT = "replay socket does not answer"

EXACT = SourceState(True, "")
STARTING = SourceState(False, "starting")


class Counters:
    """Events of a source's life so far; plain numbers for metrics."""

    __slots__ = (
        "batches",
        "duplicates",
        "foreign_blocks",
        "gaps",
        "malformed",
        "restarts",
        "unindexable",
        "unknown_events",
        "unknown_hashes",
        "unknown_media",
        "unknown_parents",
    )

    def __init__(self) -> None:
        self.batches = 0
        self.duplicates = 0
        self.foreign_blocks = 0
        """Events of cache groups that are not indexed."""
        self.gaps = 0
        self.malformed = 0
        self.restarts = 0
        self.unindexable = 0
        self.unknown_events = 0
        self.unknown_hashes = 0
        """Tier events without content, and removals, of blocks never seen."""
        self.unknown_media = 0
        self.unknown_parents = 0


class Ingest:
    """`model` is the base model's identity (the ``root`` of its card), `block_size` the index's, in tokens."""

    def __init__(self, model: str, block_size: int) -> None:
        self.state = STARTING
        self.counters = Counters()
        self.last_timestamp = 0.0
        """Of the newest message applied, Unix seconds of the engine's clock."""
        self._keys = KeyMap(model, block_size)
        self._next: int | None = None
        self._applied: tuple[int, float] | None = None
        self._proof: tuple[int, float] | None = None
        self._asked_at: int | None = None
        self._syncing = False
        self._parent_replay_used = False
        self._far_tiers_seen = False
        self._group: int | None = None
        self._chain = (chain_root(model), block_size)
        self._journal: Journal | Unheard = Unheard()

    # Sharing with other routers

    def tell(self, journal: Journal) -> None:
        """Every change from now on, and a mark for each message, goes there too."""
        self._journal = journal
        self._keys.tell(journal)

    @property
    def keys(self) -> KeyMap:
        return self._keys

    @property
    def applied(self) -> At | None:
        """The last message applied; None where there is none, or what was after it is lost."""
        return None if self._applied is None else At(*self._applied)

    def facts(self) -> bytes:
        """What a successor must know besides the blocks."""
        return msgspec.msgpack.encode(
            _Facts(self._chain, not self._keys.opaque, self._keys.engine_block_size, self._group, self._far_tiers_seen)
        )

    def same_keys(self, facts: bytes) -> bool:
        """Whether what was left with these facts is keyed as here."""
        try:
            return msgspec.msgpack.decode(facts, type=_Facts).chain == self._chain
        except msgspec.DecodeError:
            return False

    def resume(self, saved: Saved) -> bool:
        """Goes on from what another router left; to be followed by `start`, whose replay proves it to be the same
        engine. False, changing nothing: what was left is of other keys, or not enough to go on from."""
        try:
            facts = msgspec.msgpack.decode(saved.facts, type=_Facts)
        except msgspec.DecodeError:
            return False
        if facts.chain != self._chain or not facts.resumable or saved.at.part:
            return False
        self._keys.restore(saved.held, saved.counts, facts.engine_block_size)
        self._next, self._applied = saved.at.sequence + 1, (saved.at.sequence, saved.at.timestamp)
        self.last_timestamp = saved.at.timestamp
        self._group, self._far_tiers_seen = facts.group, facts.far_tiers_seen
        return True

    @property
    def next_sequence(self) -> int | None:
        """The sequence expected next; None while any would do."""
        return self._next

    @property
    def syncing(self) -> bool:
        """A Resync was returned and its replay has not ended."""
        return self._syncing

    # What the caller tells

    def start(self) -> list[Operation]:
        """The subscription stands: everything published before it is in the replay."""
        return [self._resync("start")]

    def reconnected(self) -> list[Operation]:
        """The subscription was away, or long silent: catch up, and see whether it is the same engine still."""
        return [self._resync("reconnect")]

    def restarted(self) -> list[Operation]:
        """The engine is another process than before, or may be: nothing of it is known."""
        self.counters.restarts += 1
        self._parent_replay_used = False
        return self._start_over("restart")

    def live(self, message: Message) -> list[Operation]:
        """A message of the live socket. Raises nothing: what is malformed is counted, and its sequence stays due."""
        if self._syncing:
            return []
        batch = self._decode(message)
        if batch is None:
            return []
        if self._next is not None and message.sequence > self._next:
            self.counters.gaps += 1
            if self._next != self._asked_at:
                self._asked_at = self._next
                return [self._resync("gap")]
            # The replay for this very gap did not fill it, and asking again would not either.
            return self._lose(HOLE) + self._apply(message.sequence, batch)
        if self._next is not None and message.sequence < self._next:
            if batch.timestamp > self.last_timestamp:
                return self.restarted()
            self.counters.duplicates += 1
            return []
        if self._next is None and message.sequence == 0:
            # Nothing came before it, so nothing is missing.
            self.state = EXACT
        return self._apply(message.sequence, batch)

    def replayed(self, message: Message) -> list[Operation]:
        """A message of the replay socket, before the one that ends the replay."""
        if not self._syncing:
            return []
        batch = self._decode(message)
        if self._proof is not None:
            sequence, timestamp = self._proof
            if message.sequence < sequence:
                return []
            if message.sequence == sequence:
                if batch is None or batch.timestamp != timestamp:
                    return self.restarted()
                self._proof = None
                return []
            operations = self._lose(TOO_SHORT)
        elif self._next is not None and message.sequence > self._next:
            operations = self._lose(HOLE)
        else:
            operations = []
        if self._next is not None and message.sequence < self._next:
            self.counters.duplicates += 1
            return operations
        if self._next is None and message.sequence > 0 and not operations:
            self.state = SourceState(False, TOO_SHORT)
        if batch is None:
            operations += self._lose("malformed events")
            self._next = message.sequence + 1
            return operations
        return operations + self._apply(message.sequence, batch)

    def replay_ended(self) -> list[Operation]:
        """The replay socket said that this is all."""
        if not self._syncing:
            return []
        if self._proof is not None:
            # It does not know our last message: it has not come so far yet, so it is another incarnation.
            return self.restarted()
        self._syncing = False
        if self._next is None:
            self._next = 0
        if self.state is STARTING:
            self.state = EXACT
        return []

    def replay_failed(self, reason: str) -> list[Operation]:
        """There is no replay socket, or it did not answer: go on from the next live message."""
        started = self._next is None
        self._syncing = False
        self._proof = None
        if started:
            self.state = SourceState(False, reason)
            return []
        return self._lose(reason)

    # Steps

    def _resync(self, reason: str) -> Resync:
        self._syncing = True
        self._proof = None
        if self._applied is not None and self._next == self._applied[0] + 1:
            self._proof = self._applied
            return Resync(self._applied[0], reason)
        if self._next is None:
            # Nothing is held: a complete replay makes it exact, whatever was wrong before.
            self.state = STARTING
        return Resync(self._next or 0, reason)

    def _start_over(self, reason: str) -> list[Operation]:
        self.state = STARTING
        operations = self._forget()
        return [*operations, self._resync(reason)]

    def _lose(self, reason: str) -> list[Operation]:
        """Events are gone for good: drop what may be wrong and say so."""
        self.state = SourceState(False, reason)
        return self._forget()

    def _forget(self) -> list[Operation]:
        self._next = None
        self._applied = None
        self._proof = None
        self._asked_at = None
        self._far_tiers_seen = False
        self._group = None
        self._keys.reset()
        log = OperationLog()
        log.clear(None)
        return log.items

    def _decode(self, message: Message) -> EventBatch | None:
        try:
            return decode(message.payload)
        except MalformedEvents:
            self.counters.malformed += 1
            return None

    def _apply(self, sequence: int, batch: EventBatch) -> list[Operation]:
        self._next = sequence + 1
        self._applied = (sequence, batch.timestamp)
        self.last_timestamp = batch.timestamp
        self.counters.batches += 1
        self.counters.unknown_events += batch.unknown
        log = OperationLog()
        for event in _with_removals_joined(batch.events):
            try:
                self._event(event, log)
            except UnknownParent:
                self.counters.unknown_parents += 1
                if self.state.exact and not self._syncing and not self._parent_replay_used:
                    self._parent_replay_used = True
                    return self._start_over("unknown parent")
                self._doubt("unknown parent")
            except Unindexable as unindexable:
                self.counters.unindexable += 1
                self._doubt(str(unindexable))
            except MalformedEvents:
                self.counters.malformed += 1
                self._doubt("malformed events")
        self._journal.mark(At(sequence, batch.timestamp))
        return log.items

    def _doubt(self, reason: str) -> None:
        """Something is missing from now on; what was applied stays right."""
        if self.state.exact or self.state is STARTING:
            self.state = SourceState(False, reason)

    def _event(self, event: BlockStored | BlockRemoved | AllBlocksCleared, log: OperationLog) -> None:
        if isinstance(event, AllBlocksCleared):
            self._keys.cleared(Tier.DEVICE, log)
            if not self._far_tiers_seen and self.state.reason in _HEALED_BY_CLEARING:
                self.state = EXACT
            return
        tier = _tier(event.medium)
        if tier is None:
            self.counters.unknown_media += 1
            return
        if self._is_foreign(event):
            self.counters.foreign_blocks += 1
            return
        if tier is not Tier.DEVICE:
            self._far_tiers_seen = True
        if isinstance(event, BlockStored):
            self.counters.unknown_hashes += self._keys.stored(event, tier, log)
        else:
            self.counters.unknown_hashes += self._keys.removed(event.block_hashes, tier, log)

    def _is_foreign(self, event: BlockStored | BlockRemoved) -> bool:
        """Whether it belongs to another cache group than the one indexed: the first that says full attention.

        Removals and tier events without content name their group only; until one says more, group 0 is taken.
        """
        kind = event.kv_cache_spec_kind if isinstance(event, BlockStored) else None
        if kind is not None and kind not in _FULL_ATTENTION:
            return True
        if event.group_idx is None:
            return False
        if kind is not None and self._group is None:
            self._group = event.group_idx
        return event.group_idx != (self._group or 0)


def _with_removals_joined(events: Sequence[Event]) -> Iterator[Event]:
    """Engines tell evictions one by one: neighbours of one tier and group become one event."""
    run: BlockRemoved | None = None
    more: list[int | bytes] = []
    for event in events:
        if type(event) is BlockRemoved:
            if run is None:
                run = event
                continue
            if event.medium == run.medium and event.group_idx == run.group_idx:
                more += event.block_hashes
                continue
            yield _joined(run, more)
            run, more = event, []
            continue
        if run is not None:
            yield _joined(run, more)
            run, more = None, []
        yield event
    if run is not None:
        yield _joined(run, more)


def _joined(run: BlockRemoved, more: list[int | bytes]) -> BlockRemoved:
    return msgspec.structs.replace(run, block_hashes=[*run.block_hashes, *more]) if more else run


_HEALED_BY_CLEARING = frozenset({TOO_SHORT, HOLE, NO_REPLAY, REPLAY_SILENT})
"""Reasons that end when the device tier is empty, and known to be, and there is no other."""

_MEDIA: dict[str | None, Tier] = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "DISK": Tier.STORAGE,
    "STORAGE": Tier.STORAGE,
    "EXTERNAL": Tier.STORAGE,
}


def _tier(medium: str | None) -> Tier | None:
    tier = _MEDIA.get(medium)
    if tier is None and medium is not None and medium.upper().startswith("CPU"):
        # SGLang names its host pools CPU_TIER1, CPU_PINNED, ...
        return Tier.HOST
    return tier
