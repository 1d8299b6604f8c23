"""The request log: one line a request, without its prompt, to be replayed later (`kvrouter replay`).

The form is Mooncake's trace (timestamp, input_length, output_length, hash_ids in runs) with what was decided and what
came of it. Block hashes are numbered in order of appearance, so that a prompt takes a few runs of numbers and nothing
of its content can be told from them; session ids are hashed with a key that dies with the process. `docs/replay.md`
describes the fields. A line is made and written by a thread of its own behind a bounded queue: what does not fit is
dropped and counted, no request waits for the disk.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from io import BufferedWriter
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.errors import ConfigError
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.scheduling.session import SESSION_HEADERS

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the lines' form; in the head line that stands wherever block numbers begin anew."""

_QUEUE = 4096
_NUMBERED = 1 << 18
_ENCODER = msgspec.json.Encoder()


class _Decided(msgspec.Struct, frozen=True):
    blocks: Sequence[int]
    block_size: int
    requests: int
    prefill_tokens: int
    candidates: int


class _Entry(msgspec.Struct, frozen=True):
    ended: Ended
    decided: _Decided | None
    arrived: float


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


class RequestLog:
    """Implements `router.observability.events.Observer`. `start` opens the file, `close` writes what waits and ends."""

    def __init__(self, path: Path, *, wall: Callable[[], float], capacity: int = _QUEUE) -> None:
        """`wall`: seconds since the epoch."""
        self._path = path
        self._wall = wall
        self._decided: dict[str, _Decided] = {}
        self._queue: queue.Queue[_Entry | None] = queue.Queue(capacity)
        self._thread: threading.Thread | None = None
        self._writer = _Writer(path)
        self.dropped = 0
        """Requests that were not written: the disk is slower than the traffic, or refuses."""

    def start(self) -> None:
        """Raises `ConfigError` when the file cannot be written."""
        try:
            self._writer.open()
        except OSError as error:
            raise ConfigError(
                f"log.requests: {self._path} cannot be written ({error.strerror}): name a file in a folder of yours"
            ) from None
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits until all is written. Idempotent."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        chosen = decision.decode[0]
        self._decided[request.request_id] = _Decided(
            prompt.block_hashes,
            prompt.block_size,
            chosen.inflight.requests,
            chosen.inflight.prefill_tokens,
            len(decision.decode),
        )

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_end(self, event: Ended) -> None:
        decided = self._decided.pop(event.request.request_id, None)
        try:
            self._queue.put_nowait(_Entry(event, decided, self._wall() - event.e2e_s))
        except queue.Full:
            self._lose(1, "it cannot keep up")

    def _lose(self, count: int, why: str) -> None:
        if not self.dropped:
            logger.error("requests are missing from the request log %s: %s", self._path, why)
        self.dropped += count

    def _run(self) -> None:
        going = True
        while going:
            entries = [self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get())
            going = entries[-1] is not None
            batch = [entry for entry in entries if entry is not None]
            try:
                self._writer.write(batch)
            except OSError as error:
                self._lose(len(batch), error.strerror or type(error).__name__)
        self._writer.close()


class _Writer:
    """The file, owned by the log's thread once it runs. Follows a path that is moved or emptied by somebody else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BufferedWriter | None = None
        self._block_size: int | None = None
        self._numbers = BlockNumbers()
        self._key = secrets.randbits(64)

    def open(self) -> None:
        self._file = self._path.open("ab")
        self._block_size = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, entries: Sequence[_Entry]) -> None:
        """Raises OSError."""
        if not entries:
            return
        if self._file is None or self._moved(self._file):
            self.close()
            self.open()
        assert self._file is not None
        for entry in entries:
            size = entry.decided.block_size if entry.decided is not None else 0
            if self._block_size is None or (size and size != self._block_size):
                self._head(self._file, size)
            self._file.write(_ENCODER.encode(self._line(entry)) + b"\n")
        self._file.flush()

    def _moved(self, file: BufferedWriter) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        here = os.fstat(file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or here.st_size < file.tell()

    def _head(self, file: BufferedWriter, block_size: int) -> None:
        self._block_size = block_size
        self._numbers = BlockNumbers()
        file.write(_ENCODER.encode({"kvrouter_request_log": VERSION, "block_size": block_size}) + b"\n")

    def _line(self, entry: _Entry) -> dict[str, Any]:
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
        return {key: value for key, value in line.items() if value is not None}

    def _session(self, request: InferenceRequest) -> str | None:
        known = request.routing_headers
        session = next((known[name] for name in SESSION_HEADERS if known.get(name)), None)
        return None if session is None else f"{xxh3_64_intdigest(session.encode(), self._key):016x}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
