"""The request log: one line a request, without its prompt, to be replayed later (`kvrouter replay`).

A line is made and written by a thread of its own behind a bounded queue: what does not fit, and what the disk does not
take, is left out and counted, in a metric and in the log itself; no request waits for the disk.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.errors import ConfigError
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.observability.requestlog_file import LogFile
from router.observability.requestlog_lines import Decided, Entry, Lines

logger = logging.getLogger(__name__)

_QUEUE = 4096
_AGAIN_S = 60.0

Loss = Literal["queue", "disk"]
"""Why a request has no line: the disk is slower than the traffic, or takes nothing."""


class RequestLog:
    """Implements `router.observability.events.Observer`. `start` opens the file, `close` writes what waits and ends."""

    def __init__(
        self,
        path: Path,
        *,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        capacity: int = _QUEUE,
        alone: bool = True,
    ) -> None:
        """`wall`: seconds since the epoch; `alone`: no other process writes the same file."""
        self._path = path
        self._wall = wall
        self._decided: dict[str, Decided] = {}
        self._queue: queue.Queue[Entry | None] = queue.Queue(capacity)
        self._thread: threading.Thread | None = None
        self._losses = _Losses(path, clock)
        self._writer = _Writer(path, Lines(None if alone else secrets.token_hex(4)), self._losses)

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests by what became of their lines: ``written``, or the word for a loss."""
        return {"written": self._writer.written, **self._losses.counts}

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
        self._decided[request.request_id] = Decided(
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
            self._queue.put_nowait(Entry(event, decided, self._wall() - event.e2e_s))
        except queue.Full:
            self._losses.note(1, "queue", "the disk is slower than the traffic")

    def _run(self) -> None:
        going = True
        while going:
            entries = [self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get())
            going = entries[-1] is not None
            self._writer.write([entry for entry in entries if entry is not None])
        self._writer.close()


class _Losses:
    """Requests without a line. Told when it begins and once a minute while it goes on. Used by two threads."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[Loss, int] = {"queue": 0, "disk": 0}
        self._said_at: float | None = None
        self._unsaid = 0

    @property
    def counts(self) -> Mapping[str, int]:
        with self._lock:
            return {str(loss): count for loss, count in self._counts.items()}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def note(self, count: int, loss: Loss, why: str) -> None:
        with self._lock:
            self._counts[loss] += count
            self._unsaid += count
            now = self._clock()
            if self._said_at is not None and now - self._said_at < _AGAIN_S:
                return
            self._said_at = now
        self.tell(why)

    def tell(self, why: str) -> None:
        """What was not told yet."""
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            logger.error("%d requests are missing from the request log %s: %s", unsaid, self._path, why)


class _Writer:
    """The log's file, owned by its thread once that runs."""

    def __init__(self, path: Path, lines: Lines, losses: _Losses) -> None:
        self._file = LogFile(path)
        self._lines = lines
        self._losses = losses
        self._owned_up = 0
        """Of the losses, those that a line of the file tells of."""
        self.written = 0

    def open(self) -> None:
        """Raises OSError."""
        self._file.follow()

    def close(self) -> None:
        self.write(())
        self._file.close()
        self._losses.tell("the last ones before its end")

    def write(self, entries: Sequence[Entry]) -> None:
        missing = self._losses.total - self._owned_up
        if not entries and not missing:
            return
        try:
            torn = self._begin()
        except OSError as error:
            self._lose(len(entries), error)
            return
        lines, ends = [b""] if torn else [], []
        if missing:
            lines.append(self._lines.left_out(missing))
            told_by = len(lines)
        for entry in entries:
            lines += self._lines.of(entry)
            ends.append(len(lines))
        there, trouble = self._file.append(lines)
        if missing and there >= told_by:
            self._owned_up += missing
        whole = sum(end <= there for end in ends)
        self.written += whole
        if trouble is not None:
            self._lose(len(entries) - whole, trouble)

    def _begin(self) -> bool:
        """Whether half a line must be ended first. Raises OSError."""
        moved, torn = self._file.follow(), self._file.torn()
        if moved or torn:
            self._lines.begin_anew()
        return torn

    def _lose(self, count: int, error: OSError) -> None:
        # A head may be among what is not there.
        self._lines.begin_anew()
        if count:
            self._losses.note(count, "disk", error.strerror or type(error).__name__)


class RequestLogMetrics(Collector):
    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def collect(self) -> Iterable[Metric]:
        lines = CounterMetricFamily(
            "kvrouter_request_log_lines",
            "Requests by what became of their lines in the request log: written, or left out and why",
            labels=["result"],
        )
        for result, count in self._log.counts.items():
            lines.add_metric([result], count)
        yield lines
