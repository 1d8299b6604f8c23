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
import time
from collections.abc import Callable, Sequence

from kvindex.events import Tier
from kvindex.index import IndexStats, Match, Mode
from kvindex.ingest import Ingest
from kvindex.journal import At, Journal, flat
from kvindex.memory import MemoryIndex
from kvindex.redis_endpoint import SharedEndpoint
from kvindex.redis_follow import UNOWNED_S, Follower, hold, hold_now
from kvindex.redis_lease import LeaseKeeper
from kvindex.redis_link import end_task
from kvindex.redis_owner import Owner
from kvindex.redis_store import RedisStore, closing
from kvindex.redis_trouble import Complaint, StoreUnavailable

log = logging.getLogger(__name__)

_RESTORE_S = 10.0


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
        lease_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._make_store = store
        self._store = store()
        self._dispatched = dispatched
        self._interval_s = interval_s
        self._journal_limit = journal_limit
        self._dispatch_ttl_s = dispatch_ttl_s
        self._look_round_s = look_round_s
        self._clock = clock
        self._keeper = LeaseKeeper(store, router, routers=routers, lease_s=lease_s, renew_s=lease_s / 4)
        self._shared: dict[str, SharedEndpoint] = {}
        self._ignored: set[str] = set()
        self._owner = Owner(memory, self._store, self._keeper, self._shared, max_pending=max_pending, clock=clock)
        self._follower = Follower(
            memory, self._store, self._shared, self._ignored, journal_limit=journal_limit, clock=clock
        )
        self._looked_round = 0.0
        self._stale_since = clock()
        self._stale = True
        self._exchanges = 0
        self._exchanged = asyncio.Event()
        self._complaint = Complaint(log, "the index is not shared, and goes on from memory")
        self._task: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Begins to share; returns at once, whether or not the server can be reached."""
        if self._task is None:
            self._keeper.start()
            self._task = asyncio.create_task(self._share(), name="redis index")

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
        shared = self._shared.setdefault(endpoint, SharedEndpoint(self._journal_limit))
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
                await hold(self._memory, endpoint, tier, flat(saved.held[tier][1]))
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
                    hold_now(self._memory, endpoint, tier, flat(shared.source.keys.residency(tier)[1]))
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

    def _feed(self, endpoint: str) -> SharedEndpoint:
        self._ignored.discard(endpoint)
        shared = self._shared.get(endpoint)
        if shared is None:
            shared = self._shared[endpoint] = SharedEndpoint(self._journal_limit)
        if shared.source is None and not shared.stored_here:
            shared.stored_here = True
            if shared.following:
                shared.following = False
                self._memory.clear(endpoint, None)
        return shared

    def _mark(self, shared: SharedEndpoint) -> None:
        shared.place += 1
        shared.journal.mark(At(shared.place, self._owner.own_time))

    # The exchange

    async def _share(self) -> None:
        pause_s = self._interval_s
        while True:
            try:
                await self._exchange()
            except Exception as error:  # noqa: BLE001 (said with where it came from; the next round tries again)
                self._complaint.about(error)
                self._unavailable()
                pause_s = min(2.0, max(0.1, 2 * pause_s))
            else:
                self._complaint.over()
                if self._stale:
                    log.info("Redis: the index is shared")
                self._stale = False
                self._exchanges += 1
                pause_s = self._interval_s
            self._exchanged.set()
            await asyncio.sleep(pause_s)

    def _unavailable(self) -> None:
        now = self._clock()
        if not self._stale:
            self._stale, self._stale_since = True, now
        self._looked_round = 0.0
        for endpoint, shared in self._shared.items():
            # Whatever was written before is looked up again; what is too old by then shows as a difference.
            shared.at = None
            shared.journal.trim()
            if shared.following and now - self._stale_since > UNOWNED_S:
                self._memory.set_mode(endpoint, Mode.APPROXIMATE)

    async def _exchange(self) -> None:
        self._keeper.want(frozenset(endpoint for endpoint, shared in self._shared.items() if shared.fed))
        if self._clock() - self._looked_round >= self._look_round_s:
            self._looked_round = self._clock()
            await self._follower.look_round()
            await self._owner.verify()
        for endpoint, shared in list(self._shared.items()):
            if shared.fed:
                await self._owner.write(endpoint, shared)
            else:
                shared.at = None
                shared.journal.trim()
        positions = {endpoint: shared.position for endpoint, shared in self._shared.items() if shared.following}
        for entry in await self._store.changes(positions):
            await self._follower.follow_on(entry)
