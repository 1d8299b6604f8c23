"""Keeps endpoints whose events do not arrive here, or not completely, as their owner writes them.

An endpoint is loaded as a snapshot and kept up by the changes of its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

from kvindex.events import Tier
from kvindex.index import Mode
from kvindex.journal import flat, record_keys
from kvindex.memory import MemoryIndex
from kvindex.redis_endpoint import SharedEndpoint
from kvindex.redis_store import Entry, RedisStore, earlier

_SLICE = 5_000
_FOLLOW_AFTER_S = 2.0
UNOWNED_S = 10.0
"""How long what nobody writes any more is believed."""


class Follower:
    """`endpoints` and `ignored` are the caller's, and change; endpoints that others announced are added to the first.
    Methods raise StoreUnavailable."""

    def __init__(
        self,
        memory: MemoryIndex,
        store: RedisStore,
        endpoints: dict[str, SharedEndpoint],
        ignored: Set[str],
        *,
        journal_limit: int,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._store = store
        self._endpoints = endpoints
        self._ignored = ignored
        self._journal_limit = journal_limit
        self._clock = clock

    async def look_round(self) -> None:
        """Endpoints that others own and that are not, or not completely, heard here are followed."""
        known = await self._store.endpoints()
        now = self._clock()
        for endpoint in known - self._ignored:
            shared = self._endpoints.get(endpoint)
            if shared is None:
                shared = self._endpoints[endpoint] = SharedEndpoint(self._journal_limit)
            if shared.fed:
                continue
            if shared.following:
                await self._look_after(endpoint, shared, now)
            elif shared.source is None or now - shared.mode_since > _FOLLOW_AFTER_S:
                await self._follow(endpoint, shared)

    async def _look_after(self, endpoint: str, shared: SharedEndpoint, now: float) -> None:
        state = await self._store.state(endpoint)
        if state.owner is not None:
            shared.owner_seen = now
            if earlier(state.position, shared.position) and state.at is not None:
                # Another server, or an emptied one: its ids begin anew.
                await self._follow(endpoint, shared)
        elif now - shared.owner_seen > UNOWNED_S and shared.following:
            # Nobody hears the engine any more, so nobody knows what it holds.
            shared.following = False
            self._memory.clear(endpoint, None)
            self._memory.set_mode(endpoint, Mode.APPROXIMATE)

    async def _follow(self, endpoint: str, shared: SharedEndpoint) -> None:
        state = await self._store.state(endpoint)
        if state.owner is None:
            return
        snapshot = await self._store.snapshot(endpoint)
        if snapshot is None:
            return
        shared.following, shared.owner_seen = True, self._clock()
        for tier in Tier:
            if self._endpoints.get(endpoint) is not shared or not shared.following:
                return
            await hold(self._memory, endpoint, tier, flat(snapshot.saved.held[tier][1]))
        shared.position, shared.raw_at = snapshot.position, snapshot.raw_at
        if shared.following:
            self._memory.set_mode(endpoint, Mode.EXACT)

    async def follow_on(self, entry: Entry) -> None:
        endpoint = entry.endpoint
        shared = self._endpoints.get(endpoint)
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
                    hold_now(self._memory, endpoint, tier, ())
            elif change.tier is not None and change.kind != "n":
                step = self._memory.store if change.kind == "s" else self._memory.remove
                step(endpoint, record_keys(change.payload), change.tier)
        await asyncio.sleep(0)


async def hold(memory: MemoryIndex, endpoint: str, tier: Tier, keys: Sequence[int]) -> None:
    """Makes this the tier's blocks, in slices, touching only what differs."""
    wanted = dict.fromkeys(keys)
    gone = [key for key in memory.holdings(endpoint, tier) if wanted.pop(key, 0) == 0]
    for at in range(0, len(gone), _SLICE):
        memory.remove(endpoint, gone[at : at + _SLICE], tier)
        await asyncio.sleep(0)
    new = list(wanted)
    for at in range(0, len(new), _SLICE):
        memory.store(endpoint, new[at : at + _SLICE], tier)
        await asyncio.sleep(0)


def hold_now(memory: MemoryIndex, endpoint: str, tier: Tier, keys: Sequence[int]) -> None:
    wanted = dict.fromkeys(keys)
    gone = [key for key in memory.holdings(endpoint, tier) if wanted.pop(key, 0) == 0]
    memory.remove(endpoint, gone, tier)
    memory.store(endpoint, list(wanted), tier)
