"""Derived: what follows from the pool's records, as last derived: states, event sources, and whose rank is whose. PURE.

Every state is replaced whole, so whoever holds a snapshot may iterate over it for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from router.core import EndpointState
from router.pool.facts import KvEventSource
from router.pool.record import UpstreamRecord

States = Mapping[str, EndpointState]
KvSources = Mapping[str, KvEventSource]


class Difference(NamedTuple):
    """One upstream before and after; all mappings by endpoint id. What is equal is the same object."""

    old: States
    new: States
    old_sources: KvSources
    new_sources: KvSources

    @property
    def gone(self) -> list[EndpointState]:
        return [state for endpoint_id, state in self.old.items() if endpoint_id not in self.new]

    @property
    def states_differ(self) -> bool:
        old, new = self.old, self.new
        return len(new) != len(old) or any(new[endpoint_id] is not old.get(endpoint_id) for endpoint_id in new)


class Derived:
    """Upstreams in the order in which they are added, or in that of `arrange`."""

    def __init__(self) -> None:
        self._states: dict[str, States] = {}
        self._kv_sources: dict[str, KvSources] = {}
        self._upstream_of: dict[str, str] = {}
        self._snapshot: tuple[EndpointState, ...] | None = ()

    def snapshot(self) -> tuple[EndpointState, ...]:
        if self._snapshot is None:
            self._snapshot = tuple(state for states in self._states.values() for state in states.values())
        return self._snapshot

    def get(self, endpoint_id: str) -> EndpointState | None:
        upstream_id = self._upstream_of.get(endpoint_id)
        return None if upstream_id is None else self._states[upstream_id][endpoint_id]

    def upstream_of(self, endpoint_id: str) -> str | None:
        """The upstream that an endpoint is a rank of, or is."""
        return self._upstream_of.get(endpoint_id)

    def states(self, upstream_id: str) -> States:
        return self._states[upstream_id]

    def all(self) -> Iterator[tuple[str, States, KvSources]]:
        """Every upstream with its endpoints' states and event sources, as they were when this was called."""
        return iter(
            [(upstream_id, states, self._kv_sources[upstream_id]) for upstream_id, states in self._states.items()]
        )

    def add(self, upstream_id: str) -> None:
        self._states[upstream_id] = {}
        self._kv_sources[upstream_id] = {}

    def remove(self, upstream_id: str) -> States:
        """What its endpoints were."""
        states = self._states.pop(upstream_id)
        self._kv_sources.pop(upstream_id)
        for endpoint_id in states:
            del self._upstream_of[endpoint_id]
        self._snapshot = None
        return states

    def arrange(self, upstream_ids: Iterable[str]) -> None:
        """All upstreams, in the order that the snapshot is to have."""
        order = list(upstream_ids)
        if list(self._states) != order:
            self._states = {upstream_id: self._states[upstream_id] for upstream_id in order}
            self._snapshot = None

    def update(self, record: UpstreamRecord) -> Difference:
        """Derives anew what follows from `record`, whose upstream is here."""
        upstream_id = record.spec.id
        old, derived = self._states[upstream_id], record.states()
        new = {name: known if (known := old.get(name)) == state else state for name, state in derived.items()}
        difference = Difference(old, new, self._kv_sources[upstream_id], record.kv_sources())
        if difference.states_differ:
            self._states[upstream_id] = new
            self._snapshot = None
        self._kv_sources[upstream_id] = difference.new_sources
        for state in difference.gone:
            del self._upstream_of[state.endpoint.id]
        for endpoint_id in new:
            self._upstream_of[endpoint_id] = upstream_id
        return difference
