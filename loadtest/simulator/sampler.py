"""What an engine answers: token ids, texts and JSON values that depend on seeds and prompts alone. PURE.

Plain text is made of words whose token is stable: encoding the text again yields the ids that were generated, so that
the next turn of a conversation finds the blocks of this answer in the cache. An answer runs to its `max_tokens` if that
is at most `EXACT_LIMIT` or if ``ignore_eos`` is set; otherwise it ends by itself around `mean` tokens.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

EXACT_LIMIT = 512
_BEGUN_LIMIT = 512
"""Tokens of an answer that a prompt may end with and be gone on with."""


class WordList(msgspec.Struct, frozen=True):
    """Token ids to write with: openers may begin a text, words follow, stops end a sentence."""

    openers: Sequence[int]
    words: Sequence[int]
    stops: Sequence[int]
    opening: frozenset[int] = frozenset()
    """`openers`, to be looked for."""
    inner: frozenset[int] = frozenset()
    """`words` and `stops`, to be looked for."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "opening", frozenset(self.openers))
        msgspec.structs.force_setattr(self, "inner", frozenset((*self.words, *self.stops)))


def make_rng(seed: int, prompt: Sequence[int], salt: str) -> random.Random:
    """A generator that depends on nothing but its arguments."""
    digest = hashlib.blake2b(array("q", prompt).tobytes(), key=f"{seed}:{salt}"[:64].encode()[:64], digest_size=8)
    return random.Random(digest.digest())


def answer_length(limit: int | None, ceiling: int, natural: int, *, exact: bool) -> tuple[int, bool]:
    """(tokens of the answer, whether it ends by itself).

    `ceiling` is what the context leaves, `natural` where the answer would end.
    """
    top = max(1, ceiling if limit is None else min(limit, ceiling))
    if limit is not None and (exact or limit <= EXACT_LIMIT):
        return top, False
    return (natural, True) if natural < top else (top, False)


class Prose:
    """The text that one generator leads to.

    A longer text begins with the shorter one: the first token of a prefill leg is the first of the decode leg.
    """

    def __init__(self, rng: random.Random, words: WordList, mean: int) -> None:
        self._words = words
        self._opener = rng.choice(words.openers)
        self._stops_rng = random.Random(rng.getrandbits(64))
        self.natural_length = max(1, round(mean * rng.uniform(0.5, 1.5)))
        self._rng = rng

    @property
    def opener(self) -> int:
        """Its first token."""
        return self._opener

    def write(self, count: int) -> list[int]:
        """Its first `count` tokens; call it once."""
        ids = self._rng.choices(self._words.words, k=count)
        ids[0] = self._opener
        rng = self._stops_rng
        position = rng.randint(6, 14)
        while position < count:
            ids[position] = rng.choice(self._words.stops)
            position += rng.randint(6, 14)
        return ids


def begun(seed: int, prompt: Sequence[int], salt: str, words: WordList, mean: int) -> int:
    """How many of the prompt's last tokens are the beginning of the answer to those before them; 0: none are.

    A language model goes on with what it has said itself as if it had not been interrupted, and so does this one. Of
    two beginnings the longer counts: one of a token or two may be there by chance.
    """
    found = 0
    for count in range(1, min(len(prompt) - 1, _BEGUN_LIMIT) + 1):
        token = prompt[-count]
        if token in words.opening:
            prose = Prose(make_rng(seed, prompt[:-count], salt), words, mean)
            if prose.opener == token and prose.write(count) == list(prompt[-count:]):
                found = count
        if token not in words.inner:
            break
    return found


def json_value(rng: random.Random, schema: Any, depth: int = 0) -> Any:
    """A plausible value for a JSON schema (types, enum, const, required properties); an object of one field without a
    schema.
    """
    if not isinstance(schema, dict) or not schema:
        return {"answer": rng.choice(["yes", "no", "maybe"]), "score": rng.randint(0, 100)}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return json_value(rng, schema[key][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = properties if depth < 4 else {k: properties[k] for k in schema.get("required", []) if k in properties}
        return {name: json_value(rng, sub, depth + 1) for name, sub in wanted.items()}
    if kind == "array":
        length = max(int(schema.get("minItems", 1)), 1) if depth < 4 else 0
        return [json_value(rng, schema.get("items") or {"type": "string"}, depth + 1) for _ in range(length)]
    if kind == "integer":
        low = int(schema.get("minimum", 0))
        return rng.randint(low, int(schema.get("maximum", low + 100)))
    if kind == "number":
        return round(rng.uniform(float(schema.get("minimum", 0)), float(schema.get("maximum", 100))), 2)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    return rng.choice(["north", "river", "seven", "green", "Paris", "router"])
