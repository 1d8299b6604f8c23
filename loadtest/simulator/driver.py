"""RankDriver: runs one EngineCore on the event loop at the engine's speed, and tells each waiting answer when it has
grown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from loadtest.simulator.engine import EngineCore, Phase, Progress, Request, Step
from loadtest.simulator.events import CacheEvent, Cleared
from loadtest.simulator.stats import (
    REQUEST_TIME_BUCKETS,
    STEP_TOKEN_BUCKETS,
    TOKEN_COUNT_BUCKETS,
    TOKEN_TIME_BUCKETS,
    TTFT_BUCKETS,
    Histogram,
)
from loadtest.simulator.transfer import HandOff

Publish = Callable[[float, list[CacheEvent]], None]


class EngineDied(Exception):
    """The engine is gone; nothing more will come."""


class TransferFailed(Exception):
    """The other engine's KV could not be read and the policy is to fail."""


class ClientGone(Exception):
    """Nobody reads the answer any more."""


class Stream:
    """Where one HTTP answer waits for its sequences. Tokens that come while the answer is being sent are gathered."""

    __slots__ = ("_error", "_grown", "_waiter")

    def __init__(self) -> None:
        self._grown: dict[Request, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def push(self, request: Request) -> None:
        self._grown[request] = None
        self._wake()

    def fail(self, error: Exception) -> None:
        """What was gathered and not yet sent is lost with the engine."""
        self._grown.clear()
        self._error = error
        self._wake()

    async def next(self) -> list[Request]:
        """The sequences that grew or ended since the last call, waiting for the first. Raises what `fail` was given."""
        while not self._grown:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        grown, self._grown = self._grown, {}
        return list(grown)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class RankStats:
    """What one rank has measured, in seconds of wall clock."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BUCKETS)
        self.itl = Histogram(TOKEN_TIME_BUCKETS)
        self.tpot = Histogram(TOKEN_TIME_BUCKETS)
        self.e2e = Histogram(REQUEST_TIME_BUCKETS)
        self.queue = Histogram(REQUEST_TIME_BUCKETS)
        self.prefill = Histogram(REQUEST_TIME_BUCKETS)
        self.decode = Histogram(REQUEST_TIME_BUCKETS)
        self.inference = Histogram(REQUEST_TIME_BUCKETS)
        self.prompt_tokens = Histogram(TOKEN_COUNT_BUCKETS)
        self.generation_tokens = Histogram(TOKEN_COUNT_BUCKETS)
        self.step_tokens = Histogram(STEP_TOKEN_BUCKETS)
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.failed_transfers = 0
        self.transfers = Histogram(TTFT_BUCKETS)

    def end(self, request: Request, reason: str) -> None:
        """Count one finished or aborted request."""
        self.finished[reason] += 1
        if request.phase is not Phase.FINISHED or request.finished_at is None:
            return
        first = request.first_token_at or request.finished_at
        scheduled = request.scheduled_at or request.arrival
        self.e2e.observe(request.finished_at - request.arrival)
        self.queue.observe(scheduled - request.arrival)
        self.prefill.observe(first - scheduled)
        self.decode.observe(request.finished_at - first)
        self.inference.observe(request.finished_at - scheduled)
        self.prompt_tokens.observe(request.prompt_len)
        self.generation_tokens.observe(request.generated)
        if request.generated > 1:
            self.tpot.observe((request.finished_at - first) / (request.generated - 1))


class RankDriver:
    """Owns the tasks of one rank: its step loop and its KV transfers."""

    def __init__(self, rank: int, core: EngineCore, *, speed: float, publish: Publish | None) -> None:
        self.rank = rank
        self.core = core
        self.stats = RankStats()
        self._speed = speed
        self._publish = publish
        self._streams: dict[Request, tuple[Stream, str]] = {}
        self._loads: dict[Request, Callable[[Request], Coroutine[Any, Any, None]]] = {}
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._work = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        tasks = [*self._tasks, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    def submit(
        self,
        request: Request,
        stream: Stream,
        finish_reason: str,
        load: Callable[[Request], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Queue a request; `stream` hears of every step, `load` brings the KV of a remote one (see `Loader`)."""
        self._streams[request] = (stream, finish_reason)
        if load is not None:
            self._loads[request] = load
        self.core.add(request, time.monotonic())
        self._work.set()

    def abort(self, request: Request, *, tell: bool = False) -> None:
        """Drop a request at once; with `tell` its stream hears of it, as an answer that ends with "abort"."""
        entry = self._streams.pop(request, None)
        self._loads.pop(request, None)
        for task in [t for t, loading in self._tasks.items() if loading is request]:
            task.cancel()
        if self.core.abort(request, time.monotonic()):
            self.stats.end(request, "abort")
            if tell and entry is not None:
                entry[0].push(request)
        self._work.set()

    def abort_all(self) -> None:
        for request in list(self._streams):
            self.abort(request, tell=True)

    def fail_all(self, error: Exception) -> None:
        """Every waiting answer ends with `error`."""
        for request, (stream, _reason) in list(self._streams.items()):
            self.abort(request)
            stream.fail(error)

    def fail(self, request: Request, error: Exception) -> None:
        entry = self._streams.get(request)
        self.abort(request)
        if entry is not None:
            entry[0].fail(error)

    def poke(self) -> None:
        """Something changed that may let a step run."""
        self._work.set()

    async def _run(self) -> None:
        """One step after the other, each ending when the engine's clock says, so that late wake-ups do not add up."""
        ends = time.monotonic()
        while True:
            now = time.monotonic()
            step = self.core.schedule(now)
            self._start_loads(step)
            if step.empty:
                self._work.clear()
                self._flush(idle=True)
                await self._work.wait()
                ends = time.monotonic()
                continue
            ends = max(ends, now - 0.1) + step.duration_s / self._speed
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
            progress = self.core.complete(step, time.monotonic())
            self.stats.step_tokens.observe(step.tokens)
            self._flush(idle=False)
            for item in progress:
                self._tell(item)

    def _tell(self, progress: Progress) -> None:
        request = progress.request
        if progress.gap_s is None:
            self.stats.ttft.observe(time.monotonic() - request.arrival)
        else:
            self.stats.itl.observe(progress.gap_s)
        stream, reason = self._streams[request]
        if request.phase is Phase.FINISHED:
            del self._streams[request]
            self.stats.end(request, reason)
        stream.push(request)

    def _flush(self, *, idle: bool) -> None:
        """Publish what changed in the cache. A reset alone waits for the next step's batch, as in vLLM."""
        events = self.core.cache.take_events()
        if not events:
            return
        if idle and all(isinstance(e, Cleared) for e in events):
            self.core.cache.put_back(events)
        elif self._publish is not None:
            self._publish(time.time(), events)

    def _start_loads(self, step: Step) -> None:
        for request in step.loads:
            task = asyncio.create_task(self._loads.pop(request)(request))
            self._tasks[task] = request
            task.add_done_callback(self._load_done)

    def _load_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.result()
        self._work.set()


class Loader:
    """Reads the KV of a remote prompt: asks the holder, lets the transfer take its time, then lets go of the holder's
    blocks.
    """

    def __init__(
        self,
        driver: RankDriver,
        hand_off: HandOff,
        *,
        holds: Callable[[HandOff], Coroutine[Any, Any, bool]],
        release: Callable[[HandOff], Coroutine[Any, Any, None]],
        base_s: float,
        per_token_s: float,
        failure_s: float,
        recompute: bool,
    ) -> None:
        self._driver = driver
        self._hand_off = hand_off
        self._holds = holds
        self._release = release
        self._base_s = base_s
        self._per_token_s = per_token_s
        self._failure_s = failure_s
        self._recompute = recompute

    async def __call__(self, request: Request) -> None:
        driver = self._driver
        if await self._holds(self._hand_off):
            duration = self._base_s + self._per_token_s * (request.prompt_len - request.cached_tokens)
            await asyncio.sleep(duration)
            driver.stats.transfers.observe(duration)
            driver.core.loaded(request)
            await self._release(self._hand_off)
            return
        driver.stats.failed_transfers += 1
        await asyncio.sleep(self._failure_s)
        if self._recompute:
            driver.core.load_failed(request)
        else:
            driver.fail(request, TransferFailed("the KV of the prompt could not be read"))
