"""Writes the endpoints that this router owns to the shared truth.

Batches go from one place in the engine's stream to the next. Where the journal does not reach back, or the server lost
something, the difference between what is stored and what is so is written: nothing is ever cleared first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from kvindex.events import Tier
from kvindex.journal import At, Changes, read_table
from kvindex.memory import MemoryIndex
from kvindex.redis_endpoint import SharedEndpoint
from kvindex.redis_lease import LeaseKeeper
from kvindex.redis_store import RedisStore, State, Written

_BATCH = 1_000
_FOLLOW_AFTER_S = 2.0
_VERIFIED = 8


class Owner:
    """`endpoints` is the caller's, and changes. `max_pending` is the most records of one endpoint kept for writing.

    Methods raise StoreUnavailable.
    """

    def __init__(
        self,
        memory: MemoryIndex,
        store: RedisStore,
        keeper: LeaseKeeper,
        endpoints: Mapping[str, SharedEndpoint],
        *,
        max_pending: int,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._store = store
        self._keeper = keeper
        self._endpoints = endpoints
        self._max_pending = max_pending
        self._clock = clock
        self.own_time = random.random()
        """Stands for an engine's start where a caller stores by itself."""
        self._verified = 0

    async def write(self, endpoint: str, shared: SharedEndpoint) -> None:
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
        while shared.at is not None and self._endpoints.get(endpoint) is shared:
            changes, at, count = shared.journal.take(_BATCH, shared.at)
            if not count:
                return
            written = await self._store.write(endpoint, token, shared.raw_at, at, self._facts(shared), changes)
            if written is not Written.OK:
                shared.at = None
                return
            shared.at, shared.raw_at = at, at.encode().encode()
            shared.journal.done(count)

    async def _take_over(self, endpoint: str, shared: SharedEndpoint, token: str) -> None:
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

    async def _write_difference(self, endpoint: str, shared: SharedEndpoint, token: str, state: State, own: At) -> None:
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

    def _applied(self, shared: SharedEndpoint) -> At | None:
        if shared.source is not None:
            return shared.source.applied
        return At(shared.place, self.own_time)

    def _residency(
        self, endpoint: str, shared: SharedEndpoint, tier: Tier
    ) -> tuple[list[int], Sequence[int | tuple[int, ...]], dict[int, int]]:
        if shared.source is not None:
            return shared.source.keys.residency(tier)
        keys = self._memory.holdings(endpoint, tier)
        return keys, keys, {}

    def _facts(self, shared: SharedEndpoint) -> bytes:
        return b"" if shared.source is None else shared.source.facts()

    def _same_keys(self, shared: SharedEndpoint, facts: bytes) -> bool:
        return facts == b"" if shared.source is None else shared.source.same_keys(facts)

    async def verify(self) -> None:
        """A few owned endpoints in turn: a server that was rolled back is noticed though there is nothing to write."""
        owned = [endpoint for endpoint, shared in self._endpoints.items() if shared.at is not None]
        self._verified = (self._verified + _VERIFIED) % max(len(owned), 1)
        for endpoint in (owned + owned)[self._verified : self._verified + min(_VERIFIED, len(owned))]:
            state = await self._store.state(endpoint)
            shared = self._endpoints.get(endpoint)
            if shared is not None and state.raw_at != shared.raw_at:
                shared.at = None
