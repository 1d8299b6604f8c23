"""The KV index shared by many routers through Redis, with this process's memory as its mirror.

Every read and write is answered by the memory index at once; nothing ever waits for Redis. In the background, what is
said of an endpoint goes one of two ways:

*Fed*: its events arrive in this process. Of the routers it is fed in, one owns it (`kvindex.redis_lease`) and writes
its changes in batches, each from one place in the engine's stream to the next. The others keep the newest changes in
a journal, so that whoever takes over goes on from the place the last owner reached. Where the journal does not reach
back, or the server lost something, the difference between what is stored and what is so is written: nothing is ever
cleared first.

*Followed*: its events do not arrive here, or not completely. It is loaded as a snapshot and kept up by the changes of
its owner. A router that begins to hear an engine starts from the snapshot too (`restore`), and asks the engine only
for what came after.

When Redis is down, slow or frozen, routing goes on from memory, and `stats().stale` says so. Dispatches (speculation,
and the history of endpoints without events) travel by the board (`kvindex.redis_board`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from kvindex.events import Tier
from kvindex.index import IndexStats, Match, Mode
from kvindex.ingest import Ingest
from kvindex.journal import At, Changes, Journal, flat, read_table, record_keys
from kvindex.memory import MemoryIndex
from kvindex.redis_lease import LeaseKeeper
from kvindex.redis_link import StoreUnavailable, end_task
from kvindex.redis_store import Entry, RedisStore, State, Written, closing, earlier

log = logging.getLogger(__name__)

_BATCH = 4_000
_SLICE = 5_000
_FOLLOW_AFTER_S = 2.0
_UNOWNED_S = 10.0
_RESTORE_S = 10.0
_VERIFIED = 8


class _Shared:
    """One endpoint: what is known here, and where the shared truth is."""

    def __init__(self, limit: int) -> None:
        self.journal = Journal(limit)
        self.source: Ingest | None = None
        """What follows the engine's events in this process; None: nothing, or a caller who stores by itself."""
        self.stored_here = False
        """A caller stores by itself: keys stand for themselves, and places are counted."""
        self.place = 0
        self.mode = Mode.APPROXIMATE
        """As this process's own events make it."""
        self.mode_since = 0.0
        self.at: At | None = None
        """Where the stored truth is, while this router owns it and knows."""
        self.raw_at = b""
        self.token = ""
        self.following = False
        self.position = b""
        self.owner_seen = 0.0

    @property
    def fed(self) -> bool:
        return self.stored_here or (self.source is not None and self.mode is Mode.EXACT)


class RedisIndex:
    """`BlockIndex` over `memory`, shared. Usable before `start` and after `aclose`, unshared then.

    `store` makes a store with a connection of its own; three are made. `router` must be unique. `dispatched` is told
    what was dispatched here, for the others; theirs comes in through `heard` and counts `dispatch_ttl_s`. `routers`
    says how many share. `interval_s` is the pause between exchanges, `max_pending` the most records of one endpoint
    kept for writing.
    """

    def __init__(
        self,
        memory: MemoryIndex,
        store: Callable[[], RedisStore],
        *,
        router: str,
        dispatched: Callable[[str, Sequence[int]], None] = lambda endpoint, keys: None,
        routers: Callable[[], int] = lambda: 1,
        interval_s: float = 0.03,
        max_pending: int = 200_000,
        journal_limit: int = 20_000,
        dispatch_ttl_s: float = 5.0,
        look_round_s: float = 0.5,
        lease_s: float = 2.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._make_store = store
        self._store = store()
        self._dispatched = dispatched
        self._interval_s = interval_s
        self._max_pending = max_pending
        self._journal_limit = journal_limit
        self._dispatch_ttl_s = dispatch_ttl_s
        self._look_round_s = look_round_s
        self._clock = clock
        self._keeper = LeaseKeeper(store, router, routers=routers, lease_s=lease_s, renew_s=lease_s / 4)
        self._own_time = random.random()
        self._shared: dict[str, _Shared] = {}
        self._ignored: set[str] = set()
        self._looked_round = 0.0
        self._verified = 0
        self._stale_since = clock()
        self._stale = True
        self._exchanges = 0
        self._exchanged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Begins to share; returns at once, whether or not the server can be reached."""
        if self._task is None:
            self._keeper.start()
            self._task = asyncio.create_task(self._share(), name="redis index")
            self._task.add_done_callback(self._on_done)

    async def aclose(self) -> None:
        """Stops sharing, gives back what it owns and closes the connections. This memory keeps what it holds."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None
        await self._keeper.aclose()
        self._stale = True
        await self._store.aclose()

    async def synchronized(self, timeout_s: float = 5.0) -> None:
        """Waits for an exchange that began after this call and left nothing to write. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            first = self._exchanges
            while self._stale or self._exchanges < first + 2 or any(map(self._is_pending, self._shared)):
                self._exchanged.clear()
                await self._exchanged.wait()

    def _is_pending(self, endpoint: str) -> bool:
        shared = self._shared[endpoint]
        if not shared.fed or not shared.journal.size:
            return False
        if self._keeper.token(endpoint) is None:
            return not self._keeper.is_others(endpoint)
        return shared.at is None or shared.journal.size > 0

    # What follows engines in this process

    def attach(self, endpoint: str, source: Ingest) -> None:
        """`source` follows the endpoint's events from now on; what it applies is to be told to `store` and so on."""
        self._ignored.discard(endpoint)
        shared = self._shared.setdefault(endpoint, _Shared(self._journal_limit))
        shared.journal = Journal(self._journal_limit)
        shared.source, shared.at = source, None
        shared.mode, shared.mode_since = Mode.APPROXIMATE, self._clock()
        source.tell(shared.journal)

    async def restore(self, endpoint: str) -> None:
        """Lets the endpoint's source go on from the shared truth, if there is one that it can go on from.

        To be awaited before the source's first `start`; never raises for what the server does or fails to do.
        """
        shared = self._shared.get(endpoint)
        if shared is None or shared.source is None:
            return
        try:
            async with asyncio.timeout(_RESTORE_S), closing(self._make_store()) as store:
                snapshot = await store.snapshot(endpoint)
                if snapshot is None or self._shared.get(endpoint) is not shared:
                    return
        except (StoreUnavailable, TimeoutError):
            return
        saved = snapshot.saved
        if shared.source.resume(saved):
            shared.following = False
            shared.journal.start(saved.at)
            for tier in Tier:
                await self._hold(endpoint, tier, flat(saved.held[tier][1]))
            log.info("KV events of %s: goes on from message %d as stored", endpoint, saved.at.sequence)

    # BlockIndex

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        return self._memory.match(keys)

    def store(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        shared = self._feed(endpoint)
        if not shared.following:
            self._memory.store(endpoint, keys, tier)
        if shared.stored_here:
            shared.journal.held(tier, keys, keys)
            self._mark(shared)

    def remove(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        shared = self._feed(endpoint)
        if not shared.following:
            self._memory.remove(endpoint, keys, tier)
        if shared.stored_here:
            shared.journal.gone(tier, keys, keys)
            self._mark(shared)

    def clear(self, endpoint: str, tier: Tier | None) -> None:
        shared = self._feed(endpoint)
        if not shared.following:
            self._memory.clear(endpoint, tier)
        if shared.stored_here:
            shared.journal.cleared(tier)
            self._mark(shared)

    def drop(self, endpoint: str) -> None:
        """Only here: others may still hear its engine, and what nobody renews ends with its time."""
        self._memory.drop(endpoint)
        self._shared.pop(endpoint, None)
        self._ignored.add(endpoint)

    def speculate(self, endpoint: str, keys: Sequence[int], ttl_s: float) -> None:
        self._ignored.discard(endpoint)
        self._memory.speculate(endpoint, keys, ttl_s)
        self._dispatched(endpoint, keys)

    def record(self, endpoint: str, keys: Sequence[int]) -> None:
        self._ignored.discard(endpoint)
        self._memory.record(endpoint, keys)
        self._dispatched(endpoint, keys)

    def heard(self, endpoint: str, keys: Sequence[int], age_s: float) -> None:
        """Another router dispatched this chain `age_s` ago."""
        if endpoint in self._ignored:
            return
        left_s = self._dispatch_ttl_s - age_s
        if left_s > 0.0 or self._memory.mode(endpoint) is Mode.APPROXIMATE:
            self._memory.speculate(endpoint, keys, left_s)

    def set_mode(self, endpoint: str, mode: Mode) -> None:
        shared = self._shared.get(endpoint)
        if shared is not None and shared.mode is not mode:
            shared.mode, shared.mode_since = mode, self._clock()
        if shared is not None and shared.following:
            if mode is Mode.APPROXIMATE:
                return
            # Heard completely again: its own word replaces the owner's.
            shared.following = False
            if shared.source is not None:
                for tier in Tier:
                    self._hold_now(endpoint, tier, flat(shared.source.keys.residency(tier)[1]))
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
            stale=self._stale or self._keeper.failing,
        )

    @property
    def owned(self) -> int:
        """Endpoints that this router writes."""
        return self._keeper.owned()

    @property
    def followed(self) -> int:
        return sum(shared.following for shared in self._shared.values())

    # What happens here

    def _feed(self, endpoint: str) -> _Shared:
        self._ignored.discard(endpoint)
        shared = self._shared.get(endpoint)
        if shared is None:
            shared = self._shared[endpoint] = _Shared(self._journal_limit)
        if shared.source is None and not shared.stored_here:
            shared.stored_here = True
            if shared.following:
                shared.following = False
                self._memory.clear(endpoint, None)
        return shared

    def _mark(self, shared: _Shared) -> None:
        shared.place += 1
        shared.journal.mark(At(shared.place, self._own_time))

    async def _hold(self, endpoint: str, tier: Tier, keys: Sequence[int]) -> None:
        """Makes this the tier's blocks, in slices, touching only what differs."""
        wanted = dict.fromkeys(keys)
        gone = [key for key in self._memory.holdings(endpoint, tier) if wanted.pop(key, 0) == 0]
        for at in range(0, len(gone), _SLICE):
            self._memory.remove(endpoint, gone[at : at + _SLICE], tier)
            await asyncio.sleep(0)
        new = list(wanted)
        for at in range(0, len(new), _SLICE):
            self._memory.store(endpoint, new[at : at + _SLICE], tier)
            await asyncio.sleep(0)

    def _hold_now(self, endpoint: str, tier: Tier, keys: Sequence[int]) -> None:
        wanted = dict.fromkeys(keys)
        gone = [key for key in self._memory.holdings(endpoint, tier) if wanted.pop(key, 0) == 0]
        self._memory.remove(endpoint, gone, tier)
        self._memory.store(endpoint, list(wanted), tier)

    # The exchange

    async def _share(self) -> None:
        pause_s = self._interval_s
        while True:
            try:
                await self._exchange()
            except StoreUnavailable as unavailable:
                self._unavailable(unavailable)
                pause_s = min(2.0, max(0.1, 2 * pause_s))
            else:
                if self._stale:
                    log.info("Redis: the index is shared")
                self._stale = False
                self._exchanges += 1
                pause_s = self._interval_s
            self._exchanged.set()
            await asyncio.sleep(pause_s)

    def _unavailable(self, unavailable: StoreUnavailable) -> None:
        now = self._clock()
        if not self._stale:
            log.warning("Redis: %s; the index goes on from memory", unavailable)
            self._stale, self._stale_since = True, now
        self._looked_round = 0.0
        for endpoint, shared in self._shared.items():
            # Whatever was written before is looked up again; what is too old by then shows as a difference.
            shared.at = None
            shared.journal.trim()
            if shared.following and now - self._stale_since > _UNOWNED_S:
                self._memory.set_mode(endpoint, Mode.APPROXIMATE)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._stale = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Redis: sharing ended; the index goes on from memory", exc_info=error)

    async def _exchange(self) -> None:
        self._keeper.want(frozenset(endpoint for endpoint, shared in self._shared.items() if shared.fed))
        if self._clock() - self._looked_round >= self._look_round_s:
            self._looked_round = self._clock()
            await self._look_round()
        for endpoint, shared in list(self._shared.items()):
            if shared.fed:
                await self._write(endpoint, shared)
            else:
                shared.at = None
                shared.journal.trim()
        positions = {endpoint: shared.position for endpoint, shared in self._shared.items() if shared.following}
        for entry in await self._store.changes(positions):
            await self._follow_on(entry)

    # Owning

    async def _write(self, endpoint: str, shared: _Shared) -> None:
        token = self._keeper.token(endpoint)
        if token is None:
            shared.at = None
            shared.journal.trim()
            return
        if token != shared.token:
            # Another lease than before: others may have written meanwhile, or the server lost everything.
            shared.at, shared.token = None, token
        if shared.journal.size > self._max_pending:
            shared.at = None
        if shared.at is None:
            await self._take_over(endpoint, shared, token)
        while shared.at is not None and self._shared.get(endpoint) is shared:
            changes, at, count = shared.journal.take(_BATCH, shared.at)
            if not count:
                return
            written = await self._store.write(endpoint, token, shared.raw_at, at, self._facts(shared), changes)
            if written is not Written.OK:
                shared.at = None
                return
            shared.at, shared.raw_at = at, at.encode().encode()
            shared.journal.done(count)

    async def _take_over(self, endpoint: str, shared: _Shared, token: str) -> None:
        """Finds out where the stored truth is and goes on from there; `shared.at` says whether it succeeded."""
        await self._store.announce(endpoint)
        state = await self._store.state(endpoint)
        own = self._applied(shared)
        if own is None or state.owner != token.encode():
            return
        if state.at is not None and not state.at.part and self._same_keys(shared, state.facts):
            if shared.journal.size <= self._max_pending and shared.journal.continue_from(state.at):
                shared.at, shared.raw_at = state.at, state.raw_at
                return
            behind = shared.source is not None and state.at.timestamp > own.timestamp
            if behind and self._clock() - shared.mode_since < _FOLLOW_AFTER_S:
                return
        await self._write_difference(endpoint, shared, token, state, own)

    async def _write_difference(self, endpoint: str, shared: _Shared, token: str, state: State, own: At) -> None:
        """From what is stored to what is so now. What changes meanwhile is written behind it."""
        shared.journal.start(None)
        now = [self._residency(endpoint, shared, tier) for tier in Tier]
        facts, raw_at = self._facts(shared), state.raw_at
        part = state.at.part if state.at is not None else 0

        async def write(changes: Changes) -> bool:
            nonlocal raw_at, part
            part += 1
            end = At(own.sequence, own.timestamp, part)
            written = await self._store.write(endpoint, token, raw_at, end, facts, changes.items())
            raw_at = end.encode().encode()
            return written is Written.OK

        for tier in Tier:
            table, counted = await self._store.tables(endpoint, tier)
            hashes, keys = read_table(table)
            stored = dict(zip(hashes, keys, strict=True))
            held, stands_for, counts = now[tier]
            for at in range(0, len(held), _BATCH):
                missing = [
                    (hash_, key)
                    for hash_, key in zip(held[at : at + _BATCH], stands_for[at : at + _BATCH], strict=True)
                    if stored.pop(hash_, None) != key
                ]
                if missing:
                    changes = Changes()
                    changes.add("s", tier, [hash_ for hash_, _ in missing], [key for _, key in missing])
                    if not await write(changes):
                        return
                await asyncio.sleep(0)
            rest = Changes()
            if stored:
                rest.add("r", tier, list(stored), list(stored.values()))
            over = [hash_ for hash_ in read_table(counted)[0] if hash_ not in counts]
            rest.add("n", tier, [*counts, *over], [*counts.values(), *([0] * len(over))])
            if (stored or counts or over) and not await write(rest):
                return
        end = At(own.sequence, own.timestamp)
        if await self._store.write(endpoint, token, raw_at, end, facts, []) is Written.OK:
            shared.at, shared.raw_at = end, end.encode().encode()

    def _applied(self, shared: _Shared) -> At | None:
        if shared.source is not None:
            return shared.source.applied
        return At(shared.place, self._own_time)

    def _residency(
        self, endpoint: str, shared: _Shared, tier: Tier
    ) -> tuple[list[int], Sequence[int | tuple[int, ...]], dict[int, int]]:
        if shared.source is not None:
            return shared.source.keys.residency(tier)
        keys = self._memory.holdings(endpoint, tier)
        return keys, keys, {}

    def _facts(self, shared: _Shared) -> bytes:
        return b"" if shared.source is None else shared.source.facts()

    def _same_keys(self, shared: _Shared, facts: bytes) -> bool:
        return facts == b"" if shared.source is None else shared.source.same_keys(facts)

    # Following

    async def _look_round(self) -> None:
        """Endpoints that others own and that are not, or not completely, heard here are followed."""
        known = await self._store.endpoints()
        now = self._clock()
        for endpoint in known - self._ignored:
            shared = self._shared.get(endpoint)
            if shared is None:
                shared = self._shared[endpoint] = _Shared(self._journal_limit)
            if shared.fed:
                continue
            if shared.following:
                await self._look_after(endpoint, shared, now)
            elif shared.source is None or now - shared.mode_since > _FOLLOW_AFTER_S:
                await self._follow(endpoint, shared)

        await self._verify()

    async def _verify(self) -> None:
        """A few owned endpoints in turn: a server that was rolled back is noticed though there is nothing to write."""
        owned = [endpoint for endpoint, shared in self._shared.items() if shared.at is not None]
        self._verified = (self._verified + _VERIFIED) % max(len(owned), 1)
        for endpoint in (owned + owned)[self._verified : self._verified + min(_VERIFIED, len(owned))]:
            state = await self._store.state(endpoint)
            shared = self._shared.get(endpoint)
            if shared is not None and state.raw_at != shared.raw_at:
                shared.at = None

    async def _look_after(self, endpoint: str, shared: _Shared, now: float) -> None:
        state = await self._store.state(endpoint)
        if state.owner is not None:
            shared.owner_seen = now
            if earlier(state.position, shared.position) and state.at is not None:
                # Another server, or an emptied one: its ids begin anew.
                await self._follow(endpoint, shared)
        elif now - shared.owner_seen > _UNOWNED_S and shared.following:
            # Nobody hears the engine any more, so nobody knows what it holds.
            shared.following = False
            self._memory.clear(endpoint, None)
            self._memory.set_mode(endpoint, Mode.APPROXIMATE)

    async def _follow(self, endpoint: str, shared: _Shared) -> None:
        state = await self._store.state(endpoint)
        if state.owner is None:
            return
        snapshot = await self._store.snapshot(endpoint)
        if snapshot is None:
            return
        shared.following, shared.owner_seen = True, self._clock()
        for tier in Tier:
            if self._shared.get(endpoint) is not shared or not shared.following:
                return
            await self._hold(endpoint, tier, flat(snapshot.saved.held[tier][1]))
        shared.position, shared.raw_at = snapshot.position, snapshot.raw_at
        if shared.following:
            self._memory.set_mode(endpoint, Mode.EXACT)

    async def _follow_on(self, entry: Entry) -> None:
        endpoint = entry.endpoint
        shared = self._shared.get(endpoint)
        if shared is None or not shared.following:
            return
        if entry.start != shared.raw_at:
            if earlier(shared.position, entry.id):
                await self._follow(endpoint, shared)
            return
        shared.position, shared.raw_at = entry.id, entry.end
        for change in entry.changes:
            if change.kind == "c":
                for tier in Tier if change.tier is None else (change.tier,):
                    self._hold_now(endpoint, tier, ())
            elif change.tier is not None and change.kind != "n":
                step = self._memory.store if change.kind == "s" else self._memory.remove
                step(endpoint, record_keys(change.payload), change.tier)
        await asyncio.sleep(0)
