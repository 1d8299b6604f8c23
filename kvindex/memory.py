"""The KV index in this process's memory. PURE.

`kvindex.masks` answers lookups. Beside it each endpoint keeps, per tier, the keys it holds in the order in which they
would be evicted: oldest chain first, and within a chain tail first, as engines evict. That order bounds a tier, and
the keys let a cleared endpoint's bits be swept: clearing retires the endpoint's slot, O(1) however much it held.

Bounds: an endpoint's tier at 1.1 times the engine's reported blocks (a lost event leaves entries behind; more than
that is certainly wrong), its history and its speculation at exactly that many, and the whole at `max_blocks` entries,
by emptying the endpoint longest silent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from kvindex.index import IndexStats, Match, Mode, Tier
from kvindex.masks import ANY, NEAR_AND_ANY, MaskTable

# Two kinds of entries beside the engine's own tiers: positions in an endpoint's list of holdings.
_SPECULATIVE: Final = 3
_HISTORY: Final = 4
_NEAR: Final = (int(Tier.DEVICE), _SPECULATIVE, _HISTORY)
_FAR: Final = (int(Tier.HOST), int(Tier.STORAGE))
_KINDS: Final = 5

_SLACK: Final = 1.1
_TICKS_PER_SECOND: Final = 10
_HISTORIES_A_CALL: Final = 8

_Holding = dict[int, float]
"""Block hash -> when the entry ends (speculation) or was last used (history); 0.0 in the engine's own tiers."""


class _Endpoint:
    """One endpoint's slot, mode, limits and holdings."""

    __slots__ = ("held", "id", "limits", "mode", "slot", "touched")

    def __init__(self, endpoint_id: str, slot: int, default_limit: int) -> None:
        self.id = endpoint_id
        self.slot = slot
        self.mode = Mode.APPROXIMATE
        self.held: list[_Holding] = [{} for _ in range(_KINDS)]
        self.limits = [default_limit] * _KINDS
        self.touched = 0.0


class MemoryIndex:
    """`BlockIndex` in a dict; not thread-safe: one event loop owns it.

    `clock` gives monotonic seconds. `default_blocks` bounds an endpoint's tier until `set_capacity` says better.
    `history_ttl_s` is how long an approximate endpoint's entry outlives its last use; a speculative entry ends up to
    0.1 s after its time to live. `on_shed` is told the id of an endpoint that was emptied to keep `max_blocks`: what
    it holds is unknown from then on. `sweep_slice` is the most entries of one kind that one `expire` works through.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        default_blocks: int = 131_072,
        max_blocks: int = 8_000_000,
        history_ttl_s: float = 1800.0,
        sweep_slice: int = 8192,
        on_shed: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._default_blocks = default_blocks
        self._max_blocks = max_blocks
        self._history_ttl_s = history_ttl_s
        self._sweep_slice = sweep_slice
        self._on_shed = on_shed
        self._table = MaskTable()
        self._endpoints: dict[str, _Endpoint] = {}
        self._wheel: dict[int, list[tuple[_Endpoint, Sequence[int]]]] = {}
        self._histories: dict[str, None] = {}
        self._blocks = 0
        self._shed = 0

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        return self._table.match(keys)

    # What engines report

    def store(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        state = self._touch(endpoint)
        self._add(state, tier, keys, 0.0)
        speculative = state.held[_SPECULATIVE]
        if speculative and tier is Tier.DEVICE:
            before = len(speculative)
            for key in keys:
                speculative.pop(key, None)
            self._blocks += len(speculative) - before
        self._bound(state, tier)

    def remove(self, endpoint: str, keys: Sequence[int], tier: Tier) -> None:
        if endpoint in self._endpoints:
            self._discard(self._touch(endpoint), tier, keys)

    def clear(self, endpoint: str, tier: Tier | None) -> None:
        if endpoint not in self._endpoints:
            return
        state = self._touch(endpoint)
        if tier is None:
            self._empty(state)
            return
        others = [holding for kind, holding in enumerate(state.held) if kind != tier and holding]
        if len(state.held[tier]) <= sum(map(len, others)):
            self._discard(state, tier, list(state.held[tier]))
        else:
            # The cheaper way round: everything leaves with the old slot, what is to stay comes back under a new one.
            kept = [holding.copy() if kind != tier else {} for kind, holding in enumerate(state.held)]
            self._empty(state)
            state.held = kept
            for kind, holding in enumerate(kept):
                self._blocks += len(holding)
                self._table.mark(state.slot, holding, NEAR_AND_ANY if kind in _NEAR else ANY)

    def drop(self, endpoint: str) -> None:
        state = self._endpoints.pop(endpoint, None)
        if state is not None:
            self._retire(state)

    # What routers know

    def speculate(self, endpoint: str, keys: Sequence[int], ttl_s: float) -> None:
        state = self._touch(endpoint)
        if state.mode is Mode.APPROXIMATE:
            self._record(state, keys)
            return
        device = state.held[Tier.DEVICE]
        missing = [key for key in keys if key not in device]
        if not missing:
            return
        ends = self._clock() + ttl_s
        if self._add(state, _SPECULATIVE, missing, ends) < len(missing):
            speculative = state.held[_SPECULATIVE]
            for key in missing:
                if speculative[key] < ends:
                    speculative[key] = ends
        self._wheel.setdefault(int(ends * _TICKS_PER_SECOND) + 1, []).append((state, missing))
        self._bound(state, _SPECULATIVE)

    def record(self, endpoint: str, keys: Sequence[int]) -> None:
        state = self._touch(endpoint)
        if state.mode is Mode.APPROXIMATE:
            self._record(state, keys)

    def set_mode(self, endpoint: str, mode: Mode) -> None:
        state = self._endpoint(endpoint)
        state.mode = mode
        if mode is Mode.EXACT and state.held[_HISTORY]:
            self._discard(state, _HISTORY, list(state.held[_HISTORY]))

    def mode(self, endpoint: str) -> Mode:
        state = self._endpoints.get(endpoint)
        return state.mode if state is not None else Mode.APPROXIMATE

    def set_capacity(self, endpoint: str, tier: Tier, blocks: int) -> None:
        state = self._endpoint(endpoint)
        state.limits[tier] = math.ceil(blocks * _SLACK)
        self._bound(state, tier)
        if tier is Tier.DEVICE:
            for kind in (_SPECULATIVE, _HISTORY):
                state.limits[kind] = blocks
                self._bound(state, kind)

    def holdings(self, endpoint: str, tier: Tier) -> list[int]:
        """The block hashes that the engine's events say it holds in a tier, next to be evicted first."""
        state = self._endpoints.get(endpoint)
        return list(state.held[tier]) if state is not None else []

    # Time and memory

    def expire(self) -> None:
        now = self._clock()
        self._expire_speculation(now)
        self._expire_histories(now - self._history_ttl_s)
        self._table.sweep(self._sweep_slice)

    def stats(self) -> IndexStats:
        states = self._endpoints.values()
        tables = sum(sys.getsizeof(holding) for state in states for holding in state.held)
        return IndexStats(
            blocks={state.id: {tier: len(state.held[tier]) for tier in Tier} for state in states},
            keys=len(self._table),
            speculative=sum(len(state.held[_SPECULATIVE]) for state in states),
            history=sum(len(state.held[_HISTORY]) for state in states),
            bytes_estimate=tables + self._table.size_bytes,
            sweeping=self._table.sweeping,
            shed=self._shed,
        )

    # Endpoints

    def _endpoint(self, endpoint: str) -> _Endpoint:
        state = self._endpoints.get(endpoint)
        if state is None:
            state = _Endpoint(endpoint, self._table.take_slot(endpoint), self._default_blocks)
            self._endpoints[endpoint] = state
        return state

    def _touch(self, endpoint: str) -> _Endpoint:
        state = self._endpoint(endpoint)
        state.touched = self._clock()
        return state

    def _retire(self, state: _Endpoint) -> None:
        self._blocks -= sum(map(len, state.held))
        self._table.retire_slot(state.slot, state.held)
        state.held = [{} for _ in range(_KINDS)]

    def _empty(self, state: _Endpoint) -> None:
        if any(state.held):
            self._retire(state)
            state.slot = self._table.take_slot(state.id)

    # Entries

    def _add(self, state: _Endpoint, kind: int, keys: Sequence[int], value: float) -> int:
        """Returns how many were new; entries that are there keep their place and value."""
        held = state.held[kind]
        batch = dict.fromkeys(reversed(keys), value)
        if not held.keys().isdisjoint(batch):
            batch = {key: value for key in batch if key not in held}
        held.update(batch)
        self._blocks += len(batch)
        self._table.mark(state.slot, batch, NEAR_AND_ANY if kind in _NEAR else ANY)
        return len(batch)

    def _record(self, state: _Endpoint, keys: Sequence[int]) -> None:
        history = state.held[_HISTORY]
        self._histories.setdefault(state.id)
        now = self._clock()
        if history.keys().isdisjoint(keys):
            self._add(state, _HISTORY, keys, now)
        else:
            batch = dict.fromkeys(reversed(keys), now)
            new = [key for key in batch if history.pop(key, None) is None]
            history.update(batch)
            self._blocks += len(new)
            self._table.mark(state.slot, new, NEAR_AND_ANY)
        self._bound(state, _HISTORY)

    def _discard(self, state: _Endpoint, kind: int, keys: Iterable[int]) -> None:
        """Takes entries of one kind away, and of the bits what no other kind of entry still warrants."""
        held = state.held[kind]
        gone = [key for key in keys if held.pop(key, None) is not None]
        self._blocks -= len(gone)
        near = [state.held[other] for other in _NEAR if other != kind and state.held[other]]
        if near:
            gone = [key for key in gone if not any(key in holding for holding in near)]
        far = [state.held[other] for other in _FAR if other != kind and state.held[other]]
        fetched = [key for key in gone if any(key in holding for holding in far)] if far else []
        if kind in _FAR:
            if fetched:
                gone = [key for key in gone if not any(key in holding for holding in far)]
            self._table.unmark(state.slot, gone, ANY)
            return
        self._table.unmark(state.slot, gone, NEAR_AND_ANY)
        if fetched:
            self._table.mark(state.slot, fetched, ANY)

    # Bounds and expiry

    def _bound(self, state: _Endpoint, kind: int) -> None:
        held, limit = state.held[kind], state.limits[kind]
        if len(held) > limit:
            self._discard_oldest(state, kind, len(held) - limit)
        while self._blocks > self._max_blocks:
            others = [other for other in self._endpoints.values() if other is not state and any(other.held)]
            if not others:
                self._discard_oldest(state, kind, self._blocks - self._max_blocks)
                return
            silent = min(others, key=lambda other: other.touched)
            self._shed += 1
            self._empty(silent)
            if self._on_shed is not None:
                self._on_shed(silent.id)

    def _discard_oldest(self, state: _Endpoint, kind: int, count: int) -> None:
        held = state.held[kind]
        # A little more than asked for: finding a dict's oldest entry walks over the places of deleted ones.
        self._discard(state, kind, list(islice(held, count + (len(held) >> 6))))

    def _expire_speculation(self, now: float) -> None:
        for tick in [tick for tick in self._wheel if tick <= now * _TICKS_PER_SECOND]:
            for state, keys in self._wheel.pop(tick):
                speculative = state.held[_SPECULATIVE]
                self._discard(state, _SPECULATIVE, [key for key in keys if speculative.get(key, math.inf) <= now])

    def _expire_histories(self, oldest: float) -> None:
        """Looks at the fronts of a few histories, each in its turn."""
        for endpoint in list(islice(self._histories, _HISTORIES_A_CALL)):
            del self._histories[endpoint]
            state = self._endpoints.get(endpoint)
            if state is None or not state.held[_HISTORY]:
                continue
            over = []
            for key, used in islice(state.held[_HISTORY].items(), self._sweep_slice):
                if used > oldest:
                    break
                over.append(key)
            self._discard(state, _HISTORY, over)
            if state.held[_HISTORY]:
                self._histories[endpoint] = None
