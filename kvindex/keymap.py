"""Engine hash -> our keys, for one engine rank. PURE.

An engine names blocks by hashes of its own. The first event that stores a block brings its token ids and its parent,
from which our key follows; later events, of any tier, name it by hash alone. A block's residency is a count per
(tier, engine hash): engines store one hash several times and remove it as often. Counts are kept only above 1, and a
block that left every tier is forgotten, but for the last few thousand: an offloaded copy is announced after the fact.

Engine blocks of another size than ours: of a multiple, each stands for several of our keys; of a divisor, one of our
keys stands for a run of them and is held while all of them are (`kvindex.parts`); of anything else, they are refused.
An extra of a larger engine block enters the first of our blocks in it.

Two engine hashes of one content (an engine too old to name a block's salt) share a key, and the first removal takes
it away: the index then promises less than there is, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from kvindex.events import BlockStored, MalformedEvents, Tier, engine_hash
from kvindex.hashing import SALT, Extra, block_hashes, chain_root
from kvindex.journal import Journal, Keys, Unheard
from kvindex.operations import OperationLog
from kvindex.parts import Part, Parts

_RECENT_LIMIT = 4096

_Value = int | tuple[int, ...] | Part
"""What an engine hash stands for: one key, several, or a part of one."""


class UnknownParent(Exception):
    """A stored block continues a chain that is not known: its key cannot be computed."""


class Unindexable(Exception):
    """Blocks that no key of ours stands for; the argument says why, as a metric label."""


class KeyMap:
    """The blocks of one engine rank.

    `model` is the base model's identity, `block_size` ours, in tokens. Methods append what the index has to do to an
    `OperationLog`.
    """

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        self._engine_block_size: int | None = None
        self._held: list[dict[int, _Value]] = [{} for _ in Tier]
        self._counts: list[dict[int, int]] = [{} for _ in Tier]
        self._recent: dict[int, _Value] = {}
        self._unsure: set[int] = set()
        self._parts = Parts(block_size)
        self._roots: dict[str | None, int] = {}
        self._journal: Journal | Unheard = Unheard()

    def tell(self, journal: Journal) -> None:
        """Every change from now on goes there too."""
        self._journal = journal

    @property
    def engine_block_size(self) -> int | None:
        """Tokens; None before the first block."""
        return self._engine_block_size

    @property
    def opaque(self) -> bool:
        """Engine blocks are parts of ours: the journal is keyed by our own hashes, and nobody can go on from it."""
        return self._engine_block_size is not None and self._engine_block_size < self._block_size

    def residency(self, tier: Tier) -> tuple[list[int], list[Keys], dict[int, int]]:
        """Engine hashes held, what each stands for, and those stored more than once."""
        held = self._held[tier]
        if self.opaque:
            keys = self._parts.complete(cast("Iterable[Part]", held.values()), tier)
            return keys, cast("list[Keys]", list(keys)), {}
        return list(held), cast("list[Keys]", list(held.values())), dict(self._counts[tier])

    def restore(
        self,
        held: Sequence[tuple[Sequence[int], Sequence[Keys]]],
        counts: Sequence[dict[int, int]],
        engine_block_size: int | None,
    ) -> None:
        """By tier, what `residency` gave elsewhere. Replaces everything, and tells the journal nothing."""
        self._held = [dict(zip(hashes, keys, strict=True)) for hashes, keys in held]
        self._counts = [dict(each) for each in counts]
        self._engine_block_size = engine_block_size
        self._recent = {}
        self._unsure = set()

    def __len__(self) -> int:
        return len(set().union(*self._held))

    def stored(self, event: BlockStored, tier: Tier, log: OperationLog) -> int:
        """Returns the hashes it could not place: events without content whose block was never seen.

        Raises UnknownParent, Unindexable and MalformedEvents; nothing has changed then.
        """
        hashes = [engine_hash(value) for value in event.block_hashes]
        if not event.has_tokens:
            return self._stored_by_hash(hashes, tier, log)
        found = [self._find(hash_) for hash_ in hashes]
        sure = not event.has_extra_keys or self._unsure.isdisjoint(hashes)
        if sure and None not in found:
            values = cast("list[_Value]", found)
        else:
            values = self._chain(event, hashes)
            if not sure:
                self._settle(hashes, found, values, log)
            if not event.has_extra_keys and tier is not Tier.DEVICE:
                self._unsure.update(hashes)
        self._hold(hashes, values, tier, log)
        return 0

    def removed(self, block_hashes: Iterable[int | bytes], tier: Tier, log: OperationLog) -> int:
        """Returns how many of the hashes were not held in the tier."""
        held, counts = self._held[tier], self._counts[tier]
        elsewhere = [other for other in self._held if other and other is not held]
        gone: dict[int, _Value] = {}
        unknown = 0
        for wire_hash in block_hashes:
            hash_ = engine_hash(wire_hash)
            count = counts.get(hash_) if counts else None
            if count is not None:
                if count > 2:
                    counts[hash_] = count - 1
                else:
                    del counts[hash_]
                self._journal.counted(tier, hash_, count - 1)
                continue
            value = held.pop(hash_, None)
            if value is None:
                unknown += 1
            else:
                gone[hash_] = value
        if gone:
            self._remember(gone, elsewhere)
            hashes: Sequence[int] = list(gone)
            values: Sequence[_Value] = list(gone.values())
            keys = self._keys_removed(values, tier)
            if keys:
                log.remove(keys, tier)
            if self.opaque:
                hashes, values = keys, cast("list[_Value]", keys)
            if hashes:
                self._journal.gone(tier, hashes, values)
        return unknown

    def cleared(self, tier: Tier, log: OperationLog) -> None:
        for value in self._held[tier].values():
            if isinstance(value, Part):
                self._parts.remove(value, tier)
        self._held[tier] = {}
        self._counts[tier] = {}
        log.clear(tier)
        self._journal.cleared(tier)

    def reset(self) -> None:
        """Forgets everything: another incarnation of the engine, or too many events lost."""
        self._engine_block_size = None
        self._held = [{} for _ in Tier]
        self._counts = [{} for _ in Tier]
        self._recent = {}
        self._unsure = set()
        self._parts = Parts(self._block_size)
        self._journal.cleared(None)

    def _find(self, hash_: int) -> _Value | None:
        for held in self._held:
            if held and (value := held.get(hash_)) is not None:
                return value
        return self._recent.get(hash_)

    def _remember(self, gone: dict[int, _Value], elsewhere: Sequence[dict[int, _Value]]) -> None:
        """Of what left its last tier, what it stood for: it may come back by its hash alone."""
        recent = self._recent
        if elsewhere or not recent.keys().isdisjoint(gone):
            gone = {
                hash_: value
                for hash_, value in gone.items()
                if hash_ not in recent and not any(hash_ in other for other in elsewhere)
            }
        self._unsure.difference_update(gone)
        recent.update(gone)
        if len(recent) > _RECENT_LIMIT:
            # Down to half of it at once: a dict finds its oldest entry by walking over the places of deleted ones.
            self._recent = dict(list(recent.items())[-(_RECENT_LIMIT // 2) :])

    def _stored_by_hash(self, hashes: Sequence[int], tier: Tier, log: OperationLog) -> int:
        pairs = [(hash_, value) for hash_ in hashes if (value := self._find(hash_)) is not None]
        if pairs:
            self._hold([hash_ for hash_, _ in pairs], [value for _, value in pairs], tier, log)
        return len(hashes) - len(pairs)

    def _hold(self, hashes: Sequence[int], values: Sequence[_Value], tier: Tier, log: OperationLog) -> None:
        held = self._held[tier]
        if held.keys().isdisjoint(hashes) and len(set(hashes)) == len(hashes):
            held.update(zip(hashes, values, strict=True))
            new: Sequence[_Value] = values
            new_hashes = hashes
        else:
            new, new_hashes, counts = [], [], self._counts[tier]
            for hash_, value in zip(hashes, values, strict=True):
                if hash_ in held:
                    counts[hash_] = counts.get(hash_, 1) + 1
                    self._journal.counted(tier, hash_, counts[hash_])
                else:
                    held[hash_] = value
                    new.append(value)
                    new_hashes.append(hash_)
        keys = self._keys_stored(new, tier)
        if keys:
            log.store(keys, tier)
        if self.opaque:
            new_hashes, new = keys, cast("list[_Value]", keys)
        if new_hashes:
            self._journal.held(tier, new_hashes, new)

    def _keys_stored(self, values: Sequence[_Value], tier: Tier) -> list[int]:
        if values and isinstance(values[0], Part):
            return [key for part in values for key in self._parts.store(cast("Part", part), tier)]
        return _flat(values)

    def _keys_removed(self, values: Sequence[_Value], tier: Tier) -> list[int]:
        if isinstance(values[0], Part):
            return [key for part in values for key in self._parts.remove(cast("Part", part), tier)]
        return _flat(values)

    def _chain(self, event: BlockStored, hashes: Sequence[int]) -> list[_Value]:
        """What the event's hashes stand for, from its parent and its content."""
        if event.looks_ahead:
            raise Unindexable("lookahead hashing")
        tokens = event.tokens()
        engine_size = event.block_size or len(tokens) // max(len(hashes), 1)
        self._check_size(engine_size)
        if not hashes or len(tokens) != engine_size * len(hashes):
            raise MalformedEvents(f"{len(tokens)} token ids for {len(hashes)} blocks of {engine_size}")
        parent: _Value
        if event.parent_block_hash is None:
            parent = self._root(event)
        else:
            known = self._find(engine_hash(event.parent_block_hash))
            if known is None:
                raise UnknownParent
            parent = known
        extras = _extras(event, len(hashes))
        if engine_size < self._block_size:
            return list(self._parts.chain(parent, tokens, engine_size, extras))
        ratio = engine_size // self._block_size
        start = parent[-1] if isinstance(parent, tuple) else cast("int", parent)
        ours = {i * ratio: block for i, block in extras.items()}
        keys = block_hashes(tokens, self._block_size, start, extras=ours)
        if ratio == 1:
            return cast("list[_Value]", keys)
        return [tuple(keys[at : at + ratio]) for at in range(0, len(keys), ratio)]

    def _check_size(self, engine_size: int) -> None:
        if engine_size == self._engine_block_size:
            return
        if self._engine_block_size is not None:
            raise Unindexable("several block sizes")
        if engine_size < 1 or (engine_size % self._block_size and self._block_size % engine_size):
            raise Unindexable("block size")
        self._engine_block_size = engine_size

    def _root(self, event: BlockStored) -> int:
        # An adapter known by number alone gets a key space that no request asks for: better a miss than a mix.
        unnamed = event.lora_name is None and event.lora_id is not None
        name = f"\0number {event.lora_id}" if unnamed else event.lora_name
        root = self._roots.get(name)
        if root is None:
            root = self._roots[name] = chain_root(self._model, name)
        return root

    def _settle(
        self,
        hashes: Sequence[int],
        found: Sequence[_Value | None],
        values: Sequence[_Value],
        log: OperationLog,
    ) -> None:
        """Blocks first seen in an event that could not say what besides tokens they hold: now it is known."""
        for hash_, old, new in zip(hashes, found, values, strict=True):
            self._unsure.discard(hash_)
            if old is None or old == new or isinstance(old, Part) or isinstance(new, Part):
                continue
            for tier in Tier:
                if hash_ in self._held[tier]:
                    self._held[tier][hash_] = new
                    self._journal.held(tier, [hash_], [new])
                    log.remove(_flat([old]), tier)
                    log.store(_flat([new]), tier)


def _flat(values: Sequence[_Value]) -> list[int]:
    if values and isinstance(values[0], tuple):
        return [key for value in values for key in cast("tuple[int, ...]", value)]
    return cast("list[int]", list(values))


def _extras(event: BlockStored, blocks: int) -> dict[int, list[Extra]]:
    """Block index -> extras as `block_hashes` takes them; the adapter's name is in the chain's root instead.

    vLLM lists per block: the adapter's name, then ``[identifier, offset]`` per multimodal item (a bare identifier in
    older releases), then in the chain's first block the salt, then the bytes of a prompt embedding's hash.
    """
    first = event.parent_block_hash is None
    listed = event.extras() or []
    extras: dict[int, list[Extra]] = {}
    for i, block in enumerate(listed[:blocks]):
        if not block:
            continue
        items = block[1:] if event.lora_name is not None and block[0] == event.lora_name else list(block)
        salt = _take_salt(items) if first and i == 0 else None
        block_extras = [_extra(item) for item in items]
        if salt is not None:
            block_extras.insert(0, (SALT, salt.encode("utf-8", "surrogatepass")))
        if block_extras:
            extras[i] = block_extras
    if first and event.cache_salt and not any(kind == SALT for kind, _ in extras.get(0, [])):
        extras.setdefault(0, []).insert(0, (SALT, event.cache_salt.encode("utf-8", "surrogatepass")))
    return extras


def _take_salt(items: list[Any]) -> str | None:
    """The last string of the chain's first block."""
    for at in range(len(items) - 1, -1, -1):
        if isinstance(items[at], str):
            salt: str = items.pop(at)
            return salt
    return None


def _extra(item: Any) -> Extra:
    if isinstance(item, str):
        return "mm", item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return "embeds", item
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], int):
        return "mm", item[0].encode("utf-8", "surrogatepass") + b"@" + str(item[1]).encode()
    raise MalformedEvents("an extra key has a form not known here")
