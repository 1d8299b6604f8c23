"""Token ids -> the chain of block hashes that keys the index. PURE.

One 64-bit hash a full block of tokens, each covering everything before it::

    h[i] = XXH64(h[i-1] as 8 bytes little endian || tokens of block i, 4 bytes little endian each || extras of block i)
    h[-1] = chain_root(model, lora)

An extra is whatever besides its tokens makes a block's KV different (a cache salt, an image). It is written as
``len(kind) || kind || len(value) || value`` with 4-byte little-endian lengths, so that no two different lists of
extras give the same bytes, and a salt can never pass for an adapter or an image. The hashes equal no engine's: an
engine's events carry token ids, from which `kvindex.keymap` computes these same keys.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice

from xxhash import xxh64_intdigest

Extra = tuple[str, bytes]
"""Kind and value of something besides tokens that a block's KV depends on."""

SALT = "salt"
"""Kind of the extra that carries a request's ``cache_salt``."""

TOKEN_BYTES = 4
_ROOT_DOMAIN = "kvrouter-chain"


def chain_root(model: str, lora: str | None = None) -> int:
    """64-bit start of every chain of one model and adapter.

    `model` is the base model's identity (``root`` of its card, not a served alias), since aliases share one cache.
    `lora` is the adapter's name, None for the base model itself; an empty name is not the same as None.
    """
    parts = [_extra((_ROOT_DOMAIN, b"")), _extra(("model", _utf8(model)))]
    if lora is not None:
        parts.append(_extra(("lora", _utf8(lora))))
    return xxh64_intdigest(b"".join(parts))


def block_hashes(
    token_ids: Sequence[int],
    block_size: int,
    root: int,
    *,
    cache_salt: str | None = None,
    extras: Mapping[int, Sequence[Extra]] | None = None,
) -> list[int]:
    """One hash for each full block of `block_size` tokens; a last, partial block has none.

    `token_ids` as ``array('I')`` costs no copy; any other sequence of ints is converted. `root` is a `chain_root`, or
    the hash of the block before when a chain is continued. `cache_salt` enters block 0, before `extras[0]`; an empty
    salt is no salt, as engines see it. `extras` maps a block's index to its extras in order. Raises ValueError for a
    block size below 1 and for token ids outside 0..2**32-1.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be at least 1 token")
    count = len(token_ids) // block_size
    if not count:
        return []
    width = block_size * TOKEN_BYTES
    blocks = _block_format(width).iter_unpack(_token_bytes(token_ids)[: count * width])
    join = _link_format(width).pack
    h = root
    hashes: list[int] = []
    if tails := _tails(cache_salt, extras):
        for i, (block,) in enumerate(islice(blocks, max(tails) + 1)):
            h = xxh64_intdigest(join(h, block) + tails.get(i, b""))
            hashes.append(h)
    # One pack and one digest a block was the fastest of ten ways tried; kvindex_bench prints its cost.
    hashes += [h := xxh64_intdigest(join(h, block)) for (block,) in blocks]
    return hashes


def to_token_array(token_ids: Sequence[int]) -> array[int]:
    """The ids as ``array('I')``; the same object when they already are one. Raises ValueError as `block_hashes`."""
    if isinstance(token_ids, array) and token_ids.typecode == "I":
        return token_ids
    try:
        return array("I", token_ids)
    except (OverflowError, TypeError):
        # No id in the message: token ids are the prompt.
        raise ValueError("token ids must be whole numbers from 0 to 4294967295") from None


def _token_bytes(token_ids: Sequence[int]) -> memoryview:
    tokens = to_token_array(token_ids)
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return memoryview(tokens).cast("B")


def _tails(cache_salt: str | None, extras: Mapping[int, Sequence[Extra]] | None) -> dict[int, bytes]:
    """Block index -> the bytes its extras add; blocks without extras are absent."""
    tails = {i: b"".join(map(_extra, block)) for i, block in extras.items() if block} if extras else {}
    if cache_salt:
        tails[0] = _extra((SALT, _utf8(cache_salt))) + tails.get(0, b"")
    return tails


def _extra(extra: Extra) -> bytes:
    kind, value = _utf8(extra[0]), extra[1]
    return b"".join((len(kind).to_bytes(4, "little"), kind, len(value).to_bytes(4, "little"), value))


def _utf8(text: str) -> bytes:
    # JSON may carry lone surrogates; a client's salt with one must not raise here.
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=16)
def _block_format(width: int) -> struct.Struct:
    return struct.Struct(f"{width}s")


@lru_cache(maxsize=16)
def _link_format(width: int) -> struct.Struct:
    return struct.Struct(f"<Q{width}s")
