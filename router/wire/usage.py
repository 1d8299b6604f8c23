"""Token counts that an engine reports, read from its JSON wherever they stand. PURE.

Three dialects name them differently: OpenAI's chat and completions (``prompt_tokens``), its responses
(``input_tokens`` with details) and Anthropic's messages (``cache_read_input_tokens``). vLLM 0.32 answers in all three.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_KEY = re.compile(rb'"usage"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()
_LONGEST = 16 * 1024
_TRIES = 4


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer; None where the engine said nothing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens whose KV came from the prefix cache."""

    def or_else(self, earlier: Usage | None) -> Usage:
        """What this one leaves open is taken from an earlier report of the same answer."""
        if earlier is None:
            return self
        return Usage(
            earlier.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            earlier.completion_tokens if self.completion_tokens is None else self.completion_tokens,
            earlier.cached_tokens if self.cached_tokens is None else self.cached_tokens,
        )


def usage_from_object(fields: Mapping[str, Any]) -> Usage | None:
    """The ``usage`` object of any of the three dialects; None when it holds no count."""
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    usage = Usage(
        _first(fields, "prompt_tokens", "input_tokens"),
        _first(fields, "completion_tokens", "output_tokens"),
        _count(fields.get("cache_read_input_tokens")) if cached is None else cached,
    )
    return None if usage == Usage() else usage


def find_usage(data: bytes, start: int = 0) -> int:
    """Offset of the first ``usage`` object (not null) at or after `start`, or -1.

    A text that holds the key cannot be mistaken for it: inside a JSON string its quotes are escaped.
    """
    found = _KEY.search(data, start)
    return -1 if found is None else found.end()


def usage_at(data: bytes, offset: int) -> Usage | None:
    """Reads the object that begins at `offset`; None when it is cut short or holds no count."""
    text = data[offset : offset + _LONGEST].decode("utf-8", "replace")
    try:
        fields, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return usage_from_object(fields) if isinstance(fields, dict) else None


def usage_from_json(body: bytes) -> Usage | None:
    """The last ``usage`` object of a JSON answer, of which `body` may be the tail only."""
    end = len(body)
    for _ in range(_TRIES):
        at = body.rfind(b'"usage"', 0, end)
        if at < 0:
            return None
        found = _KEY.match(body, at)
        if found is not None and (usage := usage_at(body, found.end())) is not None:
            return usage
        end = at
    return None


def _first(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if (count := _count(fields.get(name))) is not None:
            return count
    return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
