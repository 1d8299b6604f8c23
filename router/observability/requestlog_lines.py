"""Lines of the request log: a head, and a request each, with numbers in place of block hashes.

Numbers go in order of appearance, so that a prompt takes a few runs of them and nothing of its content can be told;
session ids are hashed with a key that dies with the process. `docs/replay.md` describes the fields.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from router.core import InferenceRequest
from router.observability.events import Ended
from router.scheduling.session import SESSION_HEADERS

VERSION = 1
"""Of the lines' form; in the head line that stands wherever block numbers begin anew."""

_NUMBERED = 1 << 18
_ENCODER = msgspec.json.Encoder()


class Decided(msgspec.Struct, frozen=True):
    blocks: Sequence[int]
    block_size: int
    requests: int
    prefill_tokens: int
    candidates: int


class Entry(msgspec.Struct, frozen=True):
    ended: Ended
    decided: Decided | None
    arrived: float
    """Seconds since the epoch."""


class BlockNumbers:
    """Block hash -> number, in order of appearance; remembers at least the `limit` / 2 numbered or asked for last."""

    def __init__(self, limit: int = _NUMBERED) -> None:
        self._half = max(limit // 2, 1)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._next = 0

    def runs(self, hashes: Iterable[int]) -> list[list[int]]:
        """``[[first, count], ...]``."""
        runs: list[list[int]] = []
        expected = -1
        for value in hashes:
            number = self._number(value)
            if number == expected:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])
            expected = number + 1
        return runs

    def _number(self, value: int) -> int:
        number = self._young.get(value)
        if number is not None:
            return number
        number = self._old.pop(value, None)
        if number is None:
            number, self._next = self._next, self._next + 1
        self._young[value] = number
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        return number


class Lines:
    def __init__(self, writer: str | None) -> None:
        """`writer`: who numbers the blocks, where several processes write one file."""
        self._writer = {} if writer is None else {"writer": writer}
        self._key = secrets.randbits(64)
        self._block_size: int | None = None
        self._numbers = BlockNumbers()

    def begin_anew(self) -> None:
        """The next line has a head before it."""
        self._block_size = None

    def of(self, entry: Entry) -> list[bytes]:
        """The request's line, last, and the head that must stand before it, if any."""
        size = entry.decided.block_size if entry.decided is not None else 0
        lines = []
        if self._block_size is None or (size and size != self._block_size):
            self._block_size = size
            self._numbers = BlockNumbers()
            lines.append(_ENCODER.encode({"kvrouter_request_log": VERSION, "block_size": size} | self._writer))
        lines.append(_ENCODER.encode(self._request(entry)))
        return lines

    def left_out(self, count: int) -> bytes:
        """So many requests have no line."""
        return _ENCODER.encode({"left_out": count} | self._writer)

    def _request(self, entry: Entry) -> dict[str, Any]:
        ended, decided = entry.ended, entry.decided
        request = ended.request
        line: dict[str, Any] = {
            "timestamp": round(entry.arrived * 1000, 1),
            "input_length": ended.prompt_tokens,
            "output_length": ended.output_tokens,
            "hash_ids": self._numbers.runs(decided.blocks) if decided is not None else [],
            "session": self._session(request),
            "api": ended.api.value,
            "stream": request.stream,
            "max_tokens": request.max_tokens,
            "outcome": ended.outcome.value,
            "status": ended.status,
            "reason": ended.reason,
            "endpoint": ended.endpoint_id,
            "prefill_endpoint": ended.prefill_endpoint_id,
            "attempts": ended.attempts,
            "tokens": ended.token_source.value,
            "matched": ended.matched_tokens,
            "cached": ended.cached_tokens,
            "tokenize_s": _rounded(ended.tokenize_s),
            "decide_s": _rounded(ended.decide_s),
            "prefill_s": _rounded(ended.prefill_s),
            "ttft_s": _rounded(ended.ttft_s),
            "itl_s": _rounded(ended.itl_s),
            "e2e_s": _rounded(ended.e2e_s),
        }
        if decided is not None:
            line["candidates"] = decided.candidates
            line["chosen"] = {"requests": decided.requests, "prefill_tokens": decided.prefill_tokens}
        return {key: value for key, value in line.items() if value is not None} | self._writer

    def _session(self, request: InferenceRequest) -> str | None:
        known = request.routing_headers
        session = next((known[name] for name in SESSION_HEADERS if known.get(name)), None)
        return None if session is None else f"{xxh3_64_intdigest(session.encode(), self._key):016x}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
