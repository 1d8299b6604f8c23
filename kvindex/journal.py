"""What changed in one engine rank's blocks, by engine hash, in order: what is written to the shared truth. PURE.

Steps are absolute (this hash stands for these keys, this hash is gone, this hash is counted so often): doing one twice
changes nothing, and of two for one hash the later counts. Between them stand marks, one a message applied, so that a
journal can be continued from any of them.

On the wire and in the store a record is 8 bytes of engine hash and 8 for each key it stands for (or for the count),
little endian; a payload is one byte with the number of 8-byte words after the hash, then records.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from kvindex.events import Tier
from kvindex.keybytes import from_bytes, to_bytes

Keys = int | tuple[int, ...]
"""What an engine hash stands for: one key, or several."""


class At(NamedTuple):
    """A place in an engine's stream of messages: the last one applied.

    `part` is 0 when all of it is; above, the state is torn: more of the same follows.
    """

    sequence: int
    timestamp: float
    part: int = 0

    def encode(self) -> str:
        return f"{self.sequence}|{self.timestamp!r}|{self.part}"


def decode_at(text: bytes | str) -> At | None:
    """None for nothing, and for a form not known here."""
    words = (text.decode("ascii", "replace") if isinstance(text, bytes) else text).split("|")
    try:
        sequence, timestamp, part = words
        return At(int(sequence), float(timestamp), int(part))
    except ValueError:
        return None


class Change(NamedTuple):
    """``s`` held, ``r`` gone, ``n`` counted, ``c`` cleared (without a tier: all of them); payload as told above."""

    op: str
    payload: bytes

    @property
    def kind(self) -> str:
        return self.op[0]

    @property
    def tier(self) -> Tier | None:
        return Tier(int(self.op[1])) if len(self.op) > 1 else None


class _Step(NamedTuple):
    kind: str
    tier: Tier | None
    hashes: Sequence[int]
    keys: Sequence[Any]


class Journal:
    """Steps and marks not yet written. `limit` bounds the records of a journal that nobody writes from."""

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._entries: deque[_Step | At] = deque()
        self._size = 0

    @property
    def size(self) -> int:
        """Records and marks."""
        return self._size

    # What a key map tells

    def held(self, tier: Tier, hashes: Sequence[int], keys: Sequence[Any]) -> None:
        self._add(_Step("s", tier, hashes, keys))

    def gone(self, tier: Tier, hashes: Sequence[int], keys: Sequence[Any]) -> None:
        self._add(_Step("r", tier, hashes, keys))

    def counted(self, tier: Tier, hash_: int, count: int) -> None:
        """How often a held hash is stored; told from 2 on, and when it falls back to 1."""
        self._add(_Step("n", tier, (hash_,), (count,)))

    def cleared(self, tier: Tier | None) -> None:
        self._add(_Step("c", tier, (), ()))

    def mark(self, at: At) -> None:
        """Everything so far is of messages up to this one."""
        self._entries.append(at)
        self._size += 1

    def _add(self, step: _Step) -> None:
        self._entries.append(step)
        self._size += len(step.hashes) + 1

    # What a writer asks

    def start(self, at: At | None) -> None:
        """Forgets all; the state is the one at this mark."""
        self._entries.clear()
        self._size = 0
        if at is not None:
            self.mark(at)

    def trim(self) -> None:
        """Forgets the oldest beyond the limit."""
        while self._size > self._limit:
            self._drop_first()

    def continue_from(self, at: At) -> bool:
        """Forgets everything up to this mark. False, changing nothing: it is not known here."""
        if at not in self._entries:
            return False
        while self._drop_first() != at:
            pass
        return True

    def take(self, most: int, at: At) -> tuple[list[Change], At, int]:
        """The first changes, about `most` records, where the state is after them, and what `done` is to be told.

        `at` is where it is before. Nothing is forgotten until `done`.
        """
        changes = Changes()
        size = count = 0
        for entry in self._entries:
            count += 1
            if isinstance(entry, At):
                at = entry
                size += 1
                if size >= most:
                    break
                continue
            # Torn until the message's own mark.
            at = At(at.sequence, at.timestamp, at.part + 1)
            changes.add(entry.kind, entry.tier, entry.hashes, entry.keys)
            size += len(entry.hashes) + 1
            if size >= most:
                break
        else:
            return changes.items(), at, count
        following = self._entries[count] if count < len(self._entries) else None
        if isinstance(following, At) and at.part:
            at, count = following, count + 1
        return changes.items(), at, count

    def done(self, count: int) -> None:
        for _ in range(count):
            self._drop_first()

    def _drop_first(self) -> _Step | At:
        entry = self._entries.popleft()
        self._size -= 1 if isinstance(entry, At) else len(entry.hashes) + 1
        return entry


class Unheard:
    """Takes what a journal takes, and keeps nothing."""

    def held(self, tier: Tier, hashes: Sequence[int], keys: Sequence[Any]) -> None: ...

    def gone(self, tier: Tier, hashes: Sequence[int], keys: Sequence[Any]) -> None: ...

    def counted(self, tier: Tier, hash_: int, count: int) -> None: ...

    def cleared(self, tier: Tier | None) -> None: ...

    def mark(self, at: At) -> None: ...


class Changes:
    """Steps as payloads; neighbours of one kind, tier and width become one."""

    def __init__(self) -> None:
        self._items: list[tuple[str, int, list[int], list[Any]]] = []

    def add(self, kind: str, tier: Tier | None, hashes: Sequence[int], keys: Sequence[Any]) -> None:
        op = kind if tier is None else f"{kind}{int(tier)}"
        width = len(keys[0]) if keys and isinstance(keys[0], tuple) else 1
        if self._items and kind != "c":
            last_op, last_width, last_hashes, last_keys = self._items[-1]
            if last_op == op and last_width == width:
                last_hashes.extend(hashes)
                last_keys.extend(keys)
                return
        self._items.append((op, width, list(hashes), list(keys)))

    def items(self) -> list[Change]:
        return [
            Change(op, bytes((width,)) + to_bytes(_records(hashes, keys, width)))
            for op, width, hashes, keys in self._items
        ]


def _records(hashes: Sequence[int], keys: Sequence[Any], width: int) -> array[int]:
    if width == 1:
        words = array("Q", bytes(16 * len(hashes)))
        words[0::2] = array("Q", hashes)
        words[1::2] = array("Q", keys)
        return words
    words = array("Q")
    for hash_, several in zip(hashes, keys, strict=True):
        words.append(hash_)
        words.extend(several)
    return words


def record_keys(payload: bytes) -> list[int]:
    """All keys of a payload, in order."""
    width = payload[0] if payload else 1
    words = from_bytes(payload[1:])
    if width == 1:
        return words[1::2].tolist()
    return [key for at in range(0, len(words) - width, width + 1) for key in words[at + 1 : at + 1 + width]]


def read_table(pairs: dict[bytes, bytes]) -> tuple[array[int], list[Keys]]:
    """A tier as the store keeps it: engine hash -> keys, both as bytes."""
    hashes, words = from_bytes(b"".join(pairs)), from_bytes(b"".join(pairs.values()))
    width = max(len(words) // max(len(hashes), 1), 1)
    if width == 1:
        return hashes, cast("list[Keys]", words.tolist())
    return hashes, [tuple(words[at : at + width]) for at in range(0, len(words), width)]


def flat(keys: Iterable[Keys]) -> list[int]:
    found: list[int] = []
    for each in keys:
        if isinstance(each, tuple):
            found.extend(each)
        else:
            found.append(each)
    return found


class Saved(NamedTuple):
    """One engine rank's blocks as another router left them: enough to go on from."""

    at: At
    held: list[tuple[array[int], list[Keys]]]
    """By tier: engine hashes, and what each stands for."""
    counts: list[dict[int, int]]
    """By tier: hashes stored more than once."""
    facts: bytes
    """What `kvindex.ingest` wrote of itself."""
