"""Block hash -> which endpoints hold it, as one integer: the table that lookups walk. PURE.

An endpoint has a slot, and a slot two bits: bit ``2 * slot`` says *near* (nothing has to be fetched), bit
``2 * slot + 1`` says *any* (held in some tier). Near implies any, so one walk over one dict finds both leading runs.
Equal masks are one object: the walk compares identities and does arithmetic only where the holders change.

A retired slot is forgotten by lookups at once. Its bits are swept out of the masks in slices, and the slot is used
again only after its sweep. Slots are local to a process and never leave it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from kvindex.index import Match

NEAR_AND_ANY = 3
ANY = 2

_KEY_BYTES = 32
"""Size of an int of 61 to 64 bits."""
_CANON_LIMIT = 1 << 16
_MEMO_LIMIT = 1 << 12


class _Holders:
    """The endpoints in a set of bits: with both bits, with near alone, with any alone."""

    __slots__ = ("any_only", "both", "near_only")

    def __init__(self, both: tuple[str, ...], near_only: tuple[str, ...], any_only: tuple[str, ...]) -> None:
        self.both = both
        self.near_only = near_only
        self.any_only = any_only


class _Retired:
    """A slot being swept, and the keys whose masks may still carry its bits."""

    __slots__ = ("holdings", "slot")

    def __init__(self, slot: int, holdings: list[dict[int, float]]) -> None:
        self.slot = slot
        self.holdings = holdings


class MaskTable:
    """The masks of all block hashes; whoever holds what is told to it, it never decides."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._canon: dict[int, int] = {}
        self._names: list[str | None] = []
        self._free: list[int] = []
        self._holders: dict[int, _Holders] = {}
        self._retired: deque[_Retired] = deque()
        self.sweeping = 0
        """Entries of retired slots still to be swept."""

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def size_bytes(self) -> int:
        return sys.getsizeof(self._masks) + _KEY_BYTES * len(self._masks)

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        masks = map(self._masks.get, keys)
        seen = next(masks, None)
        if seen is None:
            return {}
        alive: int = seen
        ends: list[tuple[int, int]] = []
        for position, mask in enumerate(masks, 1):
            if mask is seen:
                continue
            if mask is None:
                ends.append((position, alive))
                break
            kept = alive & mask
            if kept != alive:
                ends.append((position, alive ^ kept))
                if not kept:
                    break
                alive = kept
            seen = mask
        else:
            ends.append((len(keys), alive))
        return self._report(ends)

    def _report(self, ends: list[tuple[int, int]]) -> dict[str, Match]:
        """`ends` pairs a run length with the bits whose run has it, in rising order."""
        matches: dict[str, Match] = {}
        near: dict[str, int] = {}
        for length, bits in ends:
            holders = self._holders.get(bits) or self._decode(bits)
            if holders.both:
                matches.update(dict.fromkeys(holders.both, Match(length, length)))
            for name in holders.near_only:
                near[name] = length
            for name in holders.any_only:
                matches[name] = Match(length, near.get(name, 0))
        return matches

    def _decode(self, bits: int) -> _Holders:
        groups: dict[int, list[str]] = {1: [], ANY: [], NEAR_AND_ANY: []}
        rest = bits
        while rest:
            slot = ((rest & -rest).bit_length() - 1) // 2
            pair = (rest >> (2 * slot)) & 3
            rest ^= pair << (2 * slot)
            name = self._names[slot]
            if name is not None:
                groups[pair].append(name)
        holders = _Holders(tuple(groups[NEAR_AND_ANY]), tuple(groups[1]), tuple(groups[ANY]))
        if len(self._holders) >= _MEMO_LIMIT:
            self._holders.clear()
        self._holders[bits] = holders
        return holders

    def mark(self, slot: int, keys: Collection[int], pair: int) -> None:
        """Sets the slot's bits (`NEAR_AND_ANY` or `ANY`) on every key; whole batches in C where all keys are new."""
        masks = self._masks
        bits = self._one(pair << (2 * slot))
        if masks.keys().isdisjoint(keys):
            masks.update(dict.fromkeys(keys, bits))
        else:
            get, one = masks.get, self._one
            for key in keys:
                mask = get(key)
                masks[key] = bits if mask is None else one(mask | bits)
        if self._retired:
            self.sweep(2 * len(keys) + 1)

    def unmark(self, slot: int, keys: Iterable[int], pair: int) -> None:
        """Takes bits out that are set on every one of the keys."""
        masks, one = self._masks, self._one
        bits = one(pair << (2 * slot))
        for key in keys:
            mask = masks[key]
            if mask is bits or mask == bits:
                del masks[key]
            else:
                masks[key] = one(mask ^ bits)

    def take_slot(self, name: str) -> int:
        self._holders.clear()
        if self._free:
            # The lowest free slot keeps the masks short.
            slot = min(self._free)
            self._free.remove(slot)
            self._names[slot] = name
            return slot
        self._names.append(name)
        return len(self._names) - 1

    def retire_slot(self, slot: int, holdings: Iterable[dict[int, float]]) -> None:
        """`holdings` have as their keys every key the slot is set on; they are given away and emptied."""
        self._holders.clear()
        self._names[slot] = None
        left = [holding for holding in holdings if holding]
        self.sweeping += sum(map(len, left))
        self._retired.append(_Retired(slot, left))

    def sweep(self, budget: int) -> None:
        """Takes retired slots' bits out of at most `budget` masks."""
        while self._retired and budget > 0:
            retired = self._retired[0]
            if retired.holdings:
                count = min(budget, len(retired.holdings[-1]))
                self._sweep_some(retired.slot, retired.holdings[-1], count)
                budget -= count
                if not retired.holdings[-1]:
                    retired.holdings.pop()
            else:
                self._retired.popleft()
                self._free.append(retired.slot)

    def _sweep_some(self, slot: int, holding: dict[int, float], count: int) -> None:
        masks, one, keep = self._masks, self._one, ~(NEAR_AND_ANY << (2 * slot))
        self.sweeping -= count
        for _ in range(count):
            key = holding.popitem()[0]
            # A key in two tiers comes twice, and after the first time may be gone.
            mask = masks.get(key, 0) & keep
            if mask:
                masks[key] = one(mask)
            else:
                masks.pop(key, None)

    def _one(self, mask: int) -> int:
        """The one object that stands for this mask."""
        if len(self._canon) >= _CANON_LIMIT:
            self._canon.clear()
        return self._canon.setdefault(mask, mask)
