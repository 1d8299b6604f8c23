"""The KV index shared by many routers through Redis, with this process's memory as its mirror.

Every read and write is answered by the memory index at once; nothing ever waits for Redis. One background task
exchanges with the shared truth a few dozen times a second: it writes what happened here in batches, and applies what
other writers did. When Redis is down, slow or frozen, routing goes on from memory, `stats().stale` says so, and what
is not written yet is kept, or beyond a bound replaced by a rewrite of the whole endpoint. A server that lost or
replaced its data shows another epoch and is written to afresh.

An endpoint whose events are applied in this process (*fed*) is written to Redis and not read from it; every other
endpoint is *followed*: loaded as a snapshot and kept up by the stream of its writer. Dispatches (speculation) travel
through the stream for both kinds. Several routers may feed one endpoint: they write the same, each in order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

from kvindex.events import Tier
from kvindex.index import IndexStats, Match, Mode
from kvindex.memory import MemoryIndex
from kvindex.redis_store import Change, Entry, EpochChanged, RedisStore, StoreUnavailable, to_keys

log = logging.getLogger(__name__)

_NO_KEYS = to_keys(())
_REWRITE_CHUNK = 10_000
_BATCH_KEYS = 20_000
_BATCH_CHANGES = 1_000


class _Pending:
    """What one endpoint's next batches will write."""

    __slots__ = ("changes", "keys", "rewrite")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.keys = 0
        self.rewrite = False
        """Too much was pending, or the server lost it: write everything the endpoint holds instead."""


class RedisIndex:
    """`BlockIndex` over `memory`, shared through `store`. Usable before `start` and after `aclose`, unshared then.

    `interval_s` is the pause between exchanges, `max_pending` the most keys of one endpoint kept for writing.
    `dispatch_ttl_s` is how long another router's dispatch counts here.
    """

    def __init__(
        self,
        memory: MemoryIndex,
        store: RedisStore,
        *,
        interval_s: float = 0.03,
        max_pending: int = 200_000,
        dispatch_ttl_s: float = 5.0,
        endpoints_every_s: float = 2.0,
    ) -> None:
        self._memory = memory
        self._store = store
        self._interval_s = interval_s
        self._max_pending = max_pending
        self._dispatch_ttl_s = dispatch_ttl_s
        self._endpoints_every = max(1, round(endpoints_every_s / interval_s))
        self._writer = secrets.token_hex(8)
        self._pending: dict[str, _Pending] = {}
        self._dropped: dict[str, None] = {}
        self._fed: set[str] = set()
        self._loaded: set[str] = set()
        self._ignored: set[str] = set()
        self._positions: dict[str, bytes] = {}
        self._epoch: str | None = None
        self._stale = True
        self._exchanges = 0
        self._exchanged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Begins to share; returns at once, whether or not the server can be reached."""
        if self._task is None:
            self._task = asyncio.create_task(self._share())
            self._task.add_done_callback(self._on_done)

    async def aclose(self) -> None:
        """Stops sharing and closes the connection. What is pending is lost to others; this memory keeps it."""
        while self._task is not None and not self._task.done():
            # Until it is done: a cancellation that meets an expiring time-out can be taken for it and swallowed.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=0.1)
        self._task = None
        self._stale = True
        await self._store.aclose()

    async def synchronized(self, timeout_s: float = 5.0) -> None:
        """Waits for an exchange that began after this call and left nothing to write. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            first = self._exchanges
            while self._stale or self._pending or self._dropped or self._exchanges < first + 2:
                self._exchanged.clear()
                await self._exchanged.wait()

    # BlockIndex

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        return self._memory.match(keys)

    def store(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        self._feed(endpoint)
        self._memory.store(endpoint, keys, tier)
        self._queue(endpoint, f"s{int(tier)}", keys)

    def remove(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        self._feed(endpoint)
        self._memory.remove(endpoint, keys, tier)
        self._queue(endpoint, f"r{int(tier)}", keys)

    def clear(self, endpoint: str, tier: Tier | None) -> None:
        self._feed(endpoint)
        self._memory.clear(endpoint, tier)
        self._queue(endpoint, "c" if tier is None else f"c{int(tier)}", ())

    def drop(self, endpoint: str) -> None:
        self._memory.drop(endpoint)
        self._pending.pop(endpoint, None)
        self._positions.pop(endpoint, None)
        self._loaded.discard(endpoint)
        self._ignored.add(endpoint)
        if endpoint in self._fed:
            self._fed.discard(endpoint)
            self._dropped[endpoint] = None

    def speculate(self, endpoint: str, keys: Sequence[int], ttl_s: float) -> None:
        self._memory.speculate(endpoint, keys, ttl_s)
        self._queue(endpoint, "p", keys)

    def record(self, endpoint: str, keys: Sequence[int]) -> None:
        self._memory.record(endpoint, keys)
        self._queue(endpoint, "p", keys)

    def set_mode(self, endpoint: str, mode: Mode) -> None:
        self._memory.set_mode(endpoint, mode)

    def mode(self, endpoint: str) -> Mode:
        return self._memory.mode(endpoint)

    def set_capacity(self, endpoint: str, tier: Tier, blocks: int) -> None:
        self._memory.set_capacity(endpoint, tier, blocks)

    def expire(self) -> None:
        self._memory.expire()

    def stats(self) -> IndexStats:
        stats = self._memory.stats()
        return IndexStats(
            blocks=stats.blocks,
            keys=stats.keys,
            speculative=stats.speculative,
            history=stats.history,
            bytes_estimate=stats.bytes_estimate,
            sweeping=stats.sweeping,
            shed=stats.shed,
            stale=self._stale,
        )

    # What happens here

    def _feed(self, endpoint: str) -> None:
        """The endpoint's own events arrive here from now on: they replace what was read from others."""
        if endpoint in self._fed:
            return
        self._fed.add(endpoint)
        self._dropped.pop(endpoint, None)
        if endpoint in self._loaded:
            self._loaded.discard(endpoint)
            for tier in Tier:
                self._memory.clear(endpoint, tier)
        self._pending.setdefault(endpoint, _Pending()).rewrite = True

    def _queue(self, endpoint: str, op: str, keys: Sequence[int]) -> None:
        self._ignored.discard(endpoint)
        pending = self._pending.get(endpoint)
        if pending is None:
            pending = self._pending[endpoint] = _Pending()
        if pending.rewrite and op != "p":
            return
        pending.changes.append(Change(op, to_keys(keys)))
        pending.keys += len(keys) + 1
        if pending.keys > self._max_pending:
            pending.changes, pending.keys = [], 0
            pending.rewrite = endpoint in self._fed

    # The exchange

    async def _share(self) -> None:
        pause = self._interval_s
        while True:
            try:
                await self._exchange()
            except StoreUnavailable as unavailable:
                if not self._stale:
                    log.warning("Redis: %s; the index goes on from memory", unavailable)
                self._stale = True
                self._positions.clear()
                pause = min(2.0, max(0.1, 2 * pause))
            except EpochChanged:
                log.warning("Redis: another or an emptied server; writing and reading everything again")
                self._epoch = None
                self._positions.clear()
                pause = self._interval_s
            else:
                if self._stale:
                    log.info("Redis: the index is shared")
                self._stale = False
                self._exchanges += 1
                pause = self._interval_s
            self._exchanged.set()
            await asyncio.sleep(pause)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._stale = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Redis: sharing ended; the index goes on from memory", exc_info=error)

    async def _exchange(self) -> None:
        if self._stale or self._epoch is None:
            epoch = await self._store.epoch()
            if epoch != self._epoch:
                self._epoch = epoch
                for endpoint in self._fed:
                    self._pending.setdefault(endpoint, _Pending()).rewrite = True
        if not self._positions or self._exchanges % self._endpoints_every == 0:
            await self._follow_new()
        for entry in await self._store.read(self._positions, self._epoch):
            await self._apply(entry)
        for endpoint in list(self._dropped):
            await self._store.forget(endpoint)
            self._dropped.pop(endpoint, None)
        for endpoint in list(self._pending):
            await self._write(endpoint)

    async def _write(self, endpoint: str) -> None:
        pending = self._pending.get(endpoint)
        if pending is None:
            return
        if pending.rewrite:
            # Taken from memory now, so whatever was pending is in it; what comes meanwhile is queued behind.
            dispatched = [change for change in pending.changes if change.kind == "p"]
            del self._pending[endpoint]
            try:
                await self._rewrite(endpoint, dispatched)
            except StoreUnavailable:
                self._pending.setdefault(endpoint, _Pending()).rewrite = True
                raise
            return
        while pending.changes:
            batch, size = [], 0
            for change in pending.changes[:_BATCH_CHANGES]:
                batch.append(change)
                size += len(change.keys)
                if size >= _BATCH_KEYS:
                    break
            await self._store.write(self._writer, endpoint, batch)
            # A clear by overflow or a drop may have come in between.
            if self._pending.get(endpoint) is not pending or pending.rewrite:
                return
            del pending.changes[: len(batch)]
            pending.keys -= size + len(batch)
        del self._pending[endpoint]

    async def _rewrite(self, endpoint: str, dispatched: list[Change]) -> None:
        held = {tier: self._memory.holdings(endpoint, tier) for tier in Tier}
        changes = [Change("C", _NO_KEYS)]
        for tier, keys in held.items():
            for at in range(0, len(keys), _REWRITE_CHUNK):
                changes.append(Change(f"S{int(tier)}", to_keys(keys[at : at + _REWRITE_CHUNK])))
                await self._store.write(self._writer, endpoint, changes)
                changes = []
        await self._store.write(self._writer, endpoint, [*changes, Change("x", _NO_KEYS), *dispatched])

    async def _follow_new(self) -> None:
        known = await self._store.endpoints()
        for endpoint in known - self._positions.keys() - self._ignored:
            position = await self._store.last_id(endpoint)
            if endpoint not in self._fed:
                await self._load(endpoint)
            self._positions[endpoint] = position
        for endpoint in self._positions.keys() - known:
            # Another router dropped it. Who still feeds it writes it again.
            del self._positions[endpoint]
            if endpoint in self._fed:
                self._pending.setdefault(endpoint, _Pending()).rewrite = True
            else:
                self._memory.clear(endpoint, None)

    async def _load(self, endpoint: str) -> None:
        """Replaces what is known of a followed endpoint by its snapshot."""
        self._loaded.add(endpoint)
        for tier in Tier:
            self._memory.clear(endpoint, tier)
        async for tier, keys in self._store.snapshot(endpoint):
            if endpoint in self._fed:
                return
            self._memory.store(endpoint, keys, tier)

    async def _apply(self, entry: Entry) -> None:
        if entry.endpoint not in self._positions:
            return
        self._positions[entry.endpoint] = entry.id
        if entry.writer == self._writer:
            return
        for change in entry.changes:
            if change.kind == "p":
                self._memory.speculate(entry.endpoint, change.keys, self._dispatch_ttl_s)
            elif entry.endpoint in self._fed:
                continue
            elif change.kind == "x":
                await self._load(entry.endpoint)
            elif change.kind == "c":
                self._memory.clear(entry.endpoint, change.tier)
            elif change.tier is not None:
                step = self._memory.store if change.kind == "s" else self._memory.remove
                step(entry.endpoint, change.keys, change.tier)
