"""Engine blocks smaller than ours: several of them make one of our keys. PURE.

A `Part` is one engine block. Parts that follow each other inside one of our blocks form a path; the last one of a
full path carries the key. A key is held in a tier while every part of its path is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvindex.events import Tier
from kvindex.hashing import Extra, block_hashes


class Part:
    """One engine block inside one of our blocks."""

    __slots__ = ("extras", "heirs", "held", "key", "origin", "path", "tokens")

    def __init__(self, origin: int, path: tuple[Part, ...], tokens: array[int], extras: tuple[Extra, ...]) -> None:
        self.origin = origin
        """The key, or root, that our block follows."""
        self.path = (*path, self)
        self.tokens = tokens
        """Of the path up to here."""
        self.extras = extras
        self.key: int | None = None
        self.heirs: set[Part] = set()
        """Parts with a key whose path leads through here."""
        self.held = [False for _ in Tier]


class Parts:
    """Builds parts for our `block_size` and says which keys come and go with them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def chain(
        self,
        parent: object,
        tokens: array[int],
        engine_size: int,
        extras: Mapping[int, Sequence[Extra]],
    ) -> Iterator[Part]:
        """`parent` is a root, or the part of the block before."""
        last = parent
        for i in range(len(tokens) // engine_size):
            piece = tokens[i * engine_size : (i + 1) * engine_size]
            last = self._next(last, piece, tuple(extras.get(i, ())))
            yield last

    def _next(self, last: object, piece: array[int], extras: tuple[Extra, ...]) -> Part:
        if isinstance(last, Part) and last.key is None:
            part = Part(last.origin, last.path, last.tokens + piece, last.extras + extras)
        else:
            origin = last.key if isinstance(last, Part) else last
            assert isinstance(origin, int)
            part = Part(origin, (), piece, extras)
        if len(part.tokens) == self._block_size:
            part.key = block_hashes(part.tokens, self._block_size, part.origin, extras={0: part.extras})[0]
        return part

    def complete(self, parts: Iterable[Part], tier: Tier) -> list[int]:
        """Keys whose every part is held in the tier, of all parts held there."""
        return list(dict.fromkeys(part.key for part in parts if part.key is not None and _complete(part, tier)))

    def store(self, part: Part, tier: Tier) -> list[int]:
        """The part is held in the tier: returns the keys that are now complete."""
        part.held[tier] = True
        if part.key is not None:
            for member in part.path:
                member.heirs.add(part)
        return [heir.key for heir in part.heirs if heir.key is not None and _complete(heir, tier)]

    def remove(self, part: Part, tier: Tier) -> list[int]:
        """The part left the tier: returns the keys that were complete until now."""
        lost = [heir.key for heir in part.heirs if heir.key is not None and _complete(heir, tier)]
        part.held[tier] = False
        if part.key is not None and not any(part.held):
            for member in part.path:
                member.heirs.discard(part)
        return lost


def _complete(part: Part, tier: Tier) -> bool:
    return all(member.held[tier] for member in part.path)
