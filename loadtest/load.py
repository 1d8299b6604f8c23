"""Load: what the users of one locust process share during one run, and how the command line shapes it.

Knows nothing of locust: its options are read from any object that has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from loadtest.measure import StreamMeasure
from loadtest.profile import LoadProfile, load_profile
from loadtest.shapes import Ask, Script, script
from loadtest.tally import Tally
from loadtest.traces import TraceRequest, generate, read_trace, spread, take


class Options(Protocol):
    """The command line's words on the load; empty (or -1) is unsaid."""

    load_profile: str
    shape: str
    trace: str
    model: str
    api_key: str
    load_seed: int


def chosen_profile(options: Options) -> LoadProfile:
    """The profile with what the command line changes in it. Raises ProfileError."""
    profile = load_profile(options.load_profile)
    change: dict[str, Any] = {}
    if options.shape:
        change["shape"] = options.shape
    if options.trace:
        change |= {"shape": "trace", "trace": msgspec.structs.replace(profile.trace, path=options.trace)}
    if options.load_seed >= 0:
        change["seed"] = options.load_seed
    return msgspec.structs.replace(profile, **change)


def trace_of(profile: LoadProfile) -> list[TraceRequest]:
    """The requests of a trace load, spread over their ticks. Raises TraceError; OSError as it comes."""
    trace = profile.trace
    requests = read_trace(Path(trace.path)) if trace.path else generate(profile.seed, block_tokens=trace.block_tokens)
    return spread(requests)[: trace.limit]


class Load:
    """One run's profile, its users' numbers, its requests and its sums."""

    def __init__(self, options: Options, *, index: int = 0, processes: int = 1) -> None:
        """`index` of `processes` that share the load. Raises ProfileError, TraceError, OSError."""
        self.profile = chosen_profile(options)
        self.model = options.model
        self.headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if options.api_key:
            self.headers["Authorization"] = f"Bearer {options.api_key}"
        self.tally = Tally()
        self._unreported = Tally()
        self._began = time.perf_counter()
        trace = self.profile.shape == "trace"
        self._requests: Iterator[TraceRequest] = take(trace_of(self.profile), index, processes) if trace else iter(())
        self._numbers = count(index, processes)

    def next_script(self) -> Script:
        """What the next user asks."""
        return script(self.profile, next(self._numbers), self._requests)

    def due_in_s(self, ask: Ask) -> float:
        """Seconds until the ask is due; negative when it is late."""
        return ask.wait_s if ask.due_s is None else self._began + ask.due_s - time.perf_counter()

    def body(self, ask: Ask) -> str:
        """The chat completion request."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.profile.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields).decode()

    def ended(self, measure: StreamMeasure | None, *, failed: bool) -> None:
        """One request is over."""
        usage = measure.usage if measure else None
        self.tally.count(usage, failed=failed)
        self._unreported.count(usage, failed=failed)

    def report(self) -> dict[str, int]:
        """What was added to the sums since the last report, for the process that adds them all up."""
        report, self._unreported = self._unreported, Tally()
        return msgspec.structs.asdict(report)

    def take_report(self, report: dict[str, int]) -> None:
        self.tally.add(Tally(**report))
