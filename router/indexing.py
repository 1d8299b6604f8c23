"""Indexing: the KV index as the router uses it, and what ties it to the pool.

Owns the block size, the subscribers of engines' KV events, the capacities as the pool knows them, and the index's
housekeeping. Implements `router.ports.PrefixIndex`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from kvindex.index import BlockIndex, IndexStats, Match, Mode, Tier
from kvindex.ingest import Ingest
from kvindex.sockets import Context, Pace, event_context
from kvindex.subscriber import EventSource, KvEventSubscriber
from router.core import EndpointState
from router.pool.facts import KvEventSource
from router.tokenization.identity import model_identity

logger = logging.getLogger(__name__)

_DEFAULT_BLOCK_SIZE = 16
"""vLLM's on GPUs; any multiple of it maps onto it exactly."""
_HOUSEKEEPING_S = 0.5


class IndexingSettings(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int | None = None
    """Tokens per block of the index's keys; None: the smallest that an engine reports when it is first asked for."""
    speculative_ttl_s: float = 2.0


class Truth(Protocol):
    """What routers share of the engines' blocks (`kvindex.redis_index`)."""

    def attach(self, endpoint: str, source: Ingest, /) -> None:
        """`source` follows the endpoint's events from now on."""
        ...

    async def restore(self, endpoint: str, /) -> None:
        """Lets that source go on from what is shared, before it first asks its engine. Raises nothing, waits little."""
        ...


class Unshared:
    """One router: there is no other to share with."""

    def attach(self, endpoint: str, source: Ingest, /) -> None: ...

    async def restore(self, endpoint: str, /) -> None: ...


class Indexing:
    def __init__(
        self,
        index: BlockIndex,
        states: Callable[[], Sequence[EndpointState]],
        settings: IndexingSettings,
        truth: Truth,
    ) -> None:
        """`states`: the pool's snapshot."""
        self._index = index
        self._truth = truth
        self._states = states
        self._settings = settings
        self._block_size = settings.block_size
        self._capacity: dict[str, int] = {}
        self._following: dict[str, Following] = {}
        self._context: Context | None = None
        self._pace = Pace()

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, Match]:
        return self._index.match(block_hashes)

    def speculate(self, endpoint_id: str, block_hashes: Sequence[int]) -> None:
        self._index.speculate(endpoint_id, block_hashes, self._settings.speculative_ttl_s)

    @property
    def block_size(self) -> int:
        """Tokens per block. Fixed at the first engine that tells its own: keys of another size match nothing."""
        if self._block_size is None:
            reported = [state.block_size for state in self._states() if state.block_size]
            if not reported:
                return _DEFAULT_BLOCK_SIZE
            self._block_size = min(reported)
            logger.info("the index keys blocks of %d tokens", self._block_size)
        return self._block_size

    def subscribe(self, endpoint_id: str, source: KvEventSource) -> Following:
        """Implements `router.pool.events.EventSubscriberFactory`."""
        following = Following(
            endpoint_id, source, self._subscriber, lambda: self._index.mode(endpoint_id) is Mode.EXACT
        )
        self._following[endpoint_id] = following
        following.begin()
        return following

    def _subscriber(self, endpoint_id: str, source: KvEventSource) -> KvEventSubscriber | None:
        """None while the engine has not told its model: its blocks could not be keyed."""
        states = self._states()
        mine = [state for state in states if state.endpoint.id == endpoint_id]
        base = model_identity(None, mine)
        if base.served is None:
            return None
        if self._context is None:
            self._context = event_context()
        # Engines may name one model's files differently; requests are keyed by the first that serves the name.
        root = model_identity(base.served, states).root
        ingest = Ingest(root, self.block_size)
        self._truth.attach(endpoint_id, ingest)
        subscriber = KvEventSubscriber(
            EventSource(
                endpoint_id=endpoint_id,
                url=source.endpoint,
                replay_url=source.replay_endpoint,
                topic=source.topic,
                dp_rank=source.global_rank or 0,
            ),
            ingest,
            self._index,
            self._context,
            prepare=lambda: self._truth.restore(endpoint_id),
            pace=self._pace,
        )
        subscriber.start()
        return subscriber

    def forget(self, endpoint_id: str) -> None:
        """The endpoint, or the process behind it, is gone, and its cache with it."""
        self._following.pop(endpoint_id, None)
        self._capacity.pop(endpoint_id, None)
        self._index.drop(endpoint_id)

    def following(self) -> Mapping[str, Following]:
        """Endpoint id -> what follows its KV events."""
        return self._following

    def stats(self) -> IndexStats:
        return self._index.stats()

    def follow_pool(self) -> None:
        """Takes over capacities from the pool's newest snapshot, and begins what waited for a model."""
        for state in self._states():
            name = state.endpoint.id
            if state.num_blocks and state.block_size:
                blocks = max(state.num_blocks * state.block_size // self.block_size, 1)
                if self._capacity.get(name) != blocks:
                    self._capacity[name] = blocks
                    self._index.set_capacity(name, Tier.DEVICE, blocks)
        for following in self._following.values():
            following.begin()

    async def run(self) -> None:
        """Housekeeping, until cancelled."""
        while True:
            self.follow_pool()
            self._index.expire()
            await asyncio.sleep(_HOUSEKEEPING_S)

    async def aclose(self) -> None:
        """After all that follows is closed."""
        if self._context is not None:
            self._context.term()
            self._context = None


class Following:
    """One endpoint's KV events, followed as soon as its model is known. Implements `pool.events.EventSubscription`."""

    def __init__(
        self,
        endpoint_id: str,
        source: KvEventSource,
        make: Callable[[str, KvEventSource], KvEventSubscriber | None],
        exact: Callable[[], bool],
    ) -> None:
        """`exact`: the index holds what the engine said, by its events here or as another router heard them."""
        self._endpoint_id = endpoint_id
        self._source = source
        self._make = make
        self._exact = exact
        self._closed = False
        self.subscriber: KvEventSubscriber | None = None

    def begin(self) -> None:
        """Starts if it has not and can."""
        if self.subscriber is None and not self._closed:
            self.subscriber = self._make(self._endpoint_id, self._source)

    @property
    def exact(self) -> bool:
        return self._exact()

    def resync(self, reason: str) -> None:
        if self.subscriber is not None:
            self.subscriber.resync(reason)

    async def aclose(self) -> None:
        self._closed = True
        if self.subscriber is not None:
            await self.subscriber.aclose()

    def counts(self) -> Mapping[str, int]:
        """Messages and events by what became of them; names are a bounded set."""
        if self.subscriber is None:
            return {}
        counters = (self.subscriber.counters, self.subscriber.ingest.counters)
        return {name: getattr(counter, name) for counter in counters for name in counter.__slots__}

    def describe(self) -> dict[str, Any]:
        subscriber = self.subscriber
        if subscriber is None:
            return {"exact": False, "reason": "the engine has not told its model"}
        return {
            "exact": subscriber.state.exact,
            "reason": subscriber.state.reason,
            "lag_s": subscriber.lag,
            "last_event_age_s": subscriber.last_event_age,
            **self.counts(),
        }
