"""Changing single members of a JSON object and leaving every other byte as the client wrote it. PURE.

A body that is decoded and encoded again is another body: ``0.30000000000000004``, integers beyond 64 bits, escapes,
key order and duplicate keys do not survive. So a leg that must change a member cuts it out of the bytes instead.

The scan trusts that the object is valid JSON (`router.wire.openai.parse_request` has decoded it before) and raises
`SpliceError` when it plainly is not. It never recurses, so nesting cannot overflow it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

# One token: a run without structure, a whole string, or a bracket. A run is taken in one piece so that long lists of
# numbers cost one match.
_TOKEN = re.compile(rb'[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\"\[{]+")
_SPACE = re.compile(rb"[ \t\r\n]*")


class SpliceError(ValueError):
    """The bytes are not one whole JSON object. The message names no content."""


class Member(NamedTuple):
    """One ``key: value`` of the outermost object, as offsets into its bytes."""

    key: str
    start: int
    """Offset of the key's opening quote."""
    value: int
    """Offset of the value's first byte."""
    end: int
    """Offset one past the value's last byte."""


def members(body: bytes) -> list[Member]:
    """The outermost object's members in order, duplicates included. Raises `SpliceError`."""
    return list(_scan(body))


def raw_value(body: bytes, key: str) -> bytes | None:
    """The bytes of a top-level value, of the last one where a key is repeated (readers take that); None if absent."""
    found = None
    for member in _scan(body):
        if member.key == key:
            found = body[member.value : member.end]
    return found


def splice(body: bytes, remove: Collection[str] = (), set: Mapping[str, bytes] | None = None) -> bytes:  # noqa: A002
    """`body` without the members named in `remove` and with those of `set` (key -> raw JSON bytes).

    A set member takes the place of its first occurrence; its duplicates go; one that was not there comes last. All
    other bytes stay, except the comma that belonged to a removed member. Raises `SpliceError`.
    """
    replace = dict(set or {})
    drop = {*remove} - replace.keys()
    kept: list[bytes] = []
    changed = False
    spans = members(body)
    # A member owns the bytes from the end of the one before it (or the opening brace), without the comma: so the
    # space around it goes with it and stays with it.
    open_at = _skip_space(body, 0) + 1
    previous_end = open_at
    for member in spans:
        lead_start = previous_end if previous_end == open_at else body.index(b",", previous_end) + 1
        previous_end = member.end
        if member.key in replace:
            kept.append(body[lead_start : member.value] + replace.pop(member.key))
            drop.add(member.key)
            changed = True
        elif member.key in drop:
            changed = True
        else:
            kept.append(body[lead_start : member.end])
    if not changed and not replace:
        return body
    kept.extend(msgspec.json.encode(key) + b":" + value for key, value in replace.items())
    return body[:open_at] + b",".join(kept) + body[previous_end:]


def _scan(body: bytes) -> Iterator[Member]:
    at = _skip_space(body, 0)
    if body[at : at + 1] != b"{":
        raise SpliceError("the bytes do not begin with an object")
    at = _skip_space(body, at + 1)
    while body[at : at + 1] != b"}":
        key = _STRING.match(body, at)
        if key is None:
            raise SpliceError("a member's key is missing")
        colon = _skip_space(body, key.end())
        if body[colon : colon + 1] != b":":
            raise SpliceError("a member has no value")
        value = _skip_space(body, colon + 1)
        end = _value_end(body, value)
        yield Member(_key(key.group()), key.start(), value, end)
        at = _skip_space(body, end)
        if body[at : at + 1] == b",":
            at = _skip_space(body, at + 1)
        elif body[at : at + 1] != b"}":
            raise SpliceError("the object does not end")


def _value_end(body: bytes, at: int) -> int:
    first = body[at : at + 1]
    if first == b'"':
        string = _STRING.match(body, at)
        if string is None:
            raise SpliceError("a string does not end")
        return string.end()
    if first not in (b"{", b"["):
        scalar = _SCALAR.match(body, at)
        if scalar is None:
            raise SpliceError("a member has no value")
        return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(body, at):
        byte = body[token.start()]
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise SpliceError("a value does not end")


def _key(quoted: bytes) -> str:
    # A key may be written with escapes ("\u006bv_transfer_params"); readers see through them, so must we. The
    # standard library takes lone surrogates, which can then match no name we look for.
    if b"\\" in quoted:
        return str(json.loads(quoted.decode("utf-8", "replace"), strict=False))
    return quoted[1:-1].decode("utf-8", "replace")


def _skip_space(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at)
    return match.end() if match else at
