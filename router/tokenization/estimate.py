"""A stand-in for token ids where nobody can tell them: the text's bytes, four to an id. PURE.

Good for two things: equal beginnings give equal beginnings, so requests of one conversation stay together; and the
number of ids is near the number of tokens (English is about four bytes a token). Never exact, and labelled so.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh64_digest

from router.core import Api

BYTES_PER_TOKEN = 4
MAX_HASHED_BYTES = 256 * 1024
"""What follows is counted but not hashed: two prompts that agree so far are kept together well enough."""

_LONG_OPAQUE = 512
_MEDIA_KEYS = ("image_url", "audio_url", "video_url", "input_audio", "source", "image_embeds", "audio_embeds", "data")
_OPENING = ("tools", "instructions", "system", "chat_template_kwargs", "previous_response_id", "documents")
_TURNS = {Api.CHAT: "messages", Api.RESPONSES: "input", Api.MESSAGES: "messages", Api.COMPLETIONS: "prompt"}


class Estimate(NamedTuple):
    """Stand-in ids (``array('I')``) of the text's first `MAX_HASHED_BYTES`, and the tokens it may have in all."""

    ids: array[int]
    total: int


def estimate(api: Api, fields: Mapping[str, Any]) -> Estimate:
    """For the decoded `fields` of a body. A batch of prompts gives the longest one's ids and the sum of all."""
    if api not in _TURNS:
        return Estimate(array("I"), 0)
    turns = fields.get(_TURNS[api])
    if api is Api.COMPLETIONS and type(turns) is list:
        if turns and type(turns[0]) is not str:
            # Token ids that could not be taken as such: only their number is worth anything.
            return Estimate(array("I"), sum(len(one) if type(one) is list else 1 for one in turns))
        each = [_of_pieces([_encoded(prompt)]) for prompt in turns]
        longest = max(each, key=lambda one: one.total, default=Estimate(array("I"), 0))
        return Estimate(longest.ids, sum(one.total for one in each))
    opening = (_encoded(fields[key]) for key in _OPENING if fields.get(key))
    listed = turns if type(turns) is list else [] if turns is None else [turns]
    return _of_pieces([*opening, *(_encoded(turn) for turn in listed)])


def _of_pieces(pieces: Iterable[bytes]) -> Estimate:
    text = b"\n".join(pieces)
    ids = array("I")
    hashed = min(len(text), MAX_HASHED_BYTES) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
    ids.frombytes(text[:hashed])
    if sys.byteorder == "big":
        ids.byteswap()
    return Estimate(ids, -(-len(text) // BYTES_PER_TOKEN))


def _encoded(value: Any) -> bytes:
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    try:
        return msgspec.json.encode(_without_media(value))
    except (RecursionError, TypeError, ValueError, OverflowError, UnicodeEncodeError):
        return b""


def _without_media(turn: Any) -> Any:
    """The turn with each image or recording replaced by its digest: it tells them apart and counts for nothing."""
    if type(turn) is not dict or type(turn.get("content")) is not list:
        return turn
    return {**turn, "content": list(_parts(turn["content"]))}


def _parts(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        if type(part) is dict and (keys := [key for key in _MEDIA_KEYS if key in part]):
            part = part | {key: _digest(part[key]) for key in keys}
        yield part


def _digest(value: Any) -> Any:
    raw = value.encode("utf-8", "surrogatepass") if type(value) is str else msgspec.json.encode(value)
    return xxh64_digest(raw).hex() if len(raw) > _LONG_OPAQUE else value
