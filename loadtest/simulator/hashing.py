"""The engine's own block hashes: sha256 over canonical CBOR of (parent, token ids, extra keys), chained. PURE.

Written against what vLLM 0.32 publishes with ``--prefix-caching-hash-algo sha256_cbor`` and no PYTHONHASHSEED;
plain and salted chains equal vLLM's byte for byte (tested on a recording). A router must not rely on these values: they
only have to be chained and unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

BlockHash = bytes
ExtraKeys = tuple[tuple[str, str], ...] | None
"""Pairs of kind and value."""


def _head(major: int, n: int) -> bytes:
    if n < 24:
        return bytes((major << 5 | n,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if n < 1 << (8 * width):
            return bytes((major << 5 | code,)) + n.to_bytes(width, "big")
    raise ValueError("a CBOR head holds at most 64 bits")


def _text(value: str) -> bytes:
    raw = value.encode()
    return _head(3, len(raw)) + raw


_INTS = [_head(0, n) for n in range(65536)]
_NULL = b"\xf6"

SEED_HASH: BlockHash = hashlib.sha256(_text("vllm-none-hash")).digest()
"""The parent of a first block."""


def block_hash(parent: BlockHash | None, token_ids: Sequence[int], extra: ExtraKeys) -> BlockHash:
    """The 32-byte hash of one full block behind `parent` (None: the block is the first)."""
    parent = SEED_HASH if parent is None else parent
    ints = _INTS
    body = b"".join([ints[t] if t < 65536 else _head(0, t) for t in token_ids])
    tail = _NULL
    if extra is not None:
        tail = _head(4, len(extra)) + b"".join([b"\x82" + _text(kind) + _text(value) for kind, value in extra])
    return hashlib.sha256(b"\x83" + _head(2, len(parent)) + parent + _head(4, len(token_ids)) + body + tail).digest()


def extra_keys(index: int, lora_name: str | None, salt: str | None) -> ExtraKeys:
    """What the hash of block `index` holds besides tokens: the adapter in every block, the salt in the first one
    only.
    """
    keys: list[tuple[str, str]] = []
    if lora_name:
        # The one form that no recording confirms.
        keys.append(("lora", lora_name))
    if salt and index == 0:
        keys.append(("cache_salt", salt))
    return tuple(keys) or None


def as_int(value: BlockHash) -> int:
    """The form that events carry by default: the last 8 bytes of the digest, unsigned."""
    return int.from_bytes(value[-8:], "big")
