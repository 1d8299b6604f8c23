"""Bulletin: who hears of the pool's changes, and the telling."""

from __future__ import annotations

import logging
from collections.abc import Callable

from router.core import Endpoint, EndpointState, Health
from router.pool.facts import KvEventSource
from router.pool.observers import PoolObserver

log = logging.getLogger(__name__)

_Change = Callable[[PoolObserver], None]


class Bulletin:
    """Tells all observers of one change after the other, in the order in which they joined."""

    def __init__(self) -> None:
        self._observers: list[PoolObserver] = []

    def join(self, observer: PoolObserver) -> None:
        self._observers.append(observer)

    def leave(self, observer: PoolObserver) -> None:
        if observer in self._observers:
            self._observers.remove(observer)

    def upstream_added(self, upstream_id: str) -> None:
        self._tell(lambda observer: observer.upstream_added(upstream_id))

    def upstream_removed(self, upstream_id: str) -> None:
        self._tell(lambda observer: observer.upstream_removed(upstream_id))

    def removed(self, endpoint: Endpoint) -> None:
        self._tell(lambda observer: observer.removed(endpoint))

    def restarted(self, endpoint: Endpoint) -> None:
        self._tell(lambda observer: observer.restarted(endpoint))

    def source_changed(self, endpoint: Endpoint, source: KvEventSource | None) -> None:
        self._tell(lambda observer: observer.kv_source_changed(endpoint, source))

    def trust_changed(self, url: str, trusted: bool) -> None:
        self._tell(lambda observer: observer.trust_changed(url, trusted))

    def state_changed(self, old: EndpointState | None, new: EndpointState, reason: str) -> None:
        """`reason`: why the health is what it is."""
        if old is None:
            self._tell(lambda observer: observer.added(new))
        elif old.health is not new.health:
            level = logging.WARNING if new.health is Health.UNHEALTHY else logging.INFO
            log.log(level, "endpoint %s is %s: %s", new.endpoint.id, new.health.value, reason)
            self._tell(lambda observer: observer.health_changed(new.endpoint, old.health, new.health))

    def _tell(self, change: _Change) -> None:
        for observer in tuple(self._observers):
            change(observer)
