"""PoolObserver: how other parts hear of changes in the pool."""

from __future__ import annotations

from router.core import Endpoint, EndpointState, Health
from router.pool.facts import KvEventSource


class PoolObserver:
    """Override what you need. Calls are synchronous, come after the pool has changed, in the order of the changes,
    and must not raise."""

    def upstream_added(self, upstream_id: str) -> None:
        """An address (with all its ranks) is to be watched from now on."""

    def upstream_removed(self, upstream_id: str) -> None: ...

    def added(self, state: EndpointState) -> None: ...

    def removed(self, endpoint: Endpoint) -> None:
        """It gets nothing new; requests it still has run on."""

    def restarted(self, endpoint: Endpoint) -> None:
        """The engine is (or, where it does not tell, may be) another process than before: its cache is gone."""

    def health_changed(self, endpoint: Endpoint, old: Health, new: Health) -> None: ...

    def trust_changed(self, url: str, trusted: bool) -> None:
        """Whether an answer from the address may be waited for (`UpstreamRecord.trusted`)."""

    def kv_source_changed(self, endpoint: Endpoint, source: KvEventSource | None) -> None:
        """Also called for an endpoint with a source when it is added; None: it publishes no events any more."""
