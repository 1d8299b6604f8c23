"""Block hashes as bytes: 8 each, little endian. PURE."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable


def to_keys(keys: Iterable[int]) -> array[int]:
    """As ``array('Q')``."""
    return array("Q", keys)


def to_bytes(keys: array[int]) -> bytes:
    if sys.byteorder == "big":
        keys = keys[:]
        keys.byteswap()
    return keys.tobytes()


def from_bytes(data: bytes) -> array[int]:
    """A last piece of less than 8 bytes is left out."""
    keys = array("Q")
    keys.frombytes(data[: len(data) - len(data) % 8])
    if sys.byteorder == "big":
        keys.byteswap()
    return keys
