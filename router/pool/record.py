"""UpstreamRecord: everything the pool knows about one address, and the endpoint states that follow from it. PURE.

Ranks behind one address are one process group: they share its health, its models and its incarnation, and differ in
load, cache and event source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from router.core import Endpoint, EndpointState, Health, IndexState, ModelCard
from router.pool.facts import KvEventSource, configured_source, override_models
from router.pool.health import HealthTracker
from router.pool.ranks import RankedEndpoint, expand
from router.pool.reading import PageReading
from router.pool.spec import EndpointSpec


class UpstreamRecord:
    """Facts go in by attribute; `states()` and `kv_sources()` derive. Owned and edited by `Pool` alone."""

    __slots__ = (
        "absent",
        "discovered_at",
        "draining",
        "held",
        "impossible",
        "index",
        "models",
        "page",
        "process_start",
        "scrapes_failed",
        "since",
        "sources",
        "spec",
        "stalled",
        "tracker",
        "version",
        "was",
    )

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.tracker = HealthTracker()
        self.draining = False
        self.absent: set[str] = set()
        """Control paths that this incarnation does not have."""
        self.impossible: set[str] = set()
        """Metrics of which the log has said that they have values that cannot be."""
        self.held: str | None = None
        """``paused`` or ``asleep``, as the engine itself says."""
        self.stalled = False
        """It works on none of its requests."""
        self.since: float | None = None
        """When it came into service, and again when it came back cold."""
        self.was = Health.UNKNOWN
        self.models: Mapping[str, ModelCard] = {}
        self.version: str | None = None
        self.sources: Mapping[int, KvEventSource] = {}
        self.page: PageReading | None = None
        self.process_start: float | None = None
        self.scrapes_failed = 0
        self.discovered_at: float | None = None
        """When models and sources were last read from this incarnation; None asks for it."""
        self.index: dict[str, IndexState] = {}

    @property
    def waits(self) -> str | None:
        """Why requests would wait here for ever although ``/health`` says 200; None: they would not."""
        if self.held is not None:
            return self.held
        if self.page is not None and self.page.asleep:
            return "asleep"
        return "stands still" if self.stalled else None

    @property
    def health(self) -> Health:
        if self.draining:
            return Health.DRAINING
        return self.tracker.verdict if self.waits is None else Health.UNHEALTHY

    @property
    def ejected(self) -> bool:
        """Out, and not on the word of probes or of the engine itself."""
        return self.stalled or (self.tracker.verdict is Health.UNHEALTHY and self.tracker.by_requests)

    def served(self) -> Collection[str]:
        """Names of its models; empty: not known."""
        return self.spec.models or self.models

    def note_health(self, now: float) -> None:
        """Dates a return into service. Who drained has kept its cache, and is no newcomer."""
        health = self.health
        if health is Health.HEALTHY and self.was in (Health.UNKNOWN, Health.UNHEALTHY):
            self.since = now
        if health is not Health.DRAINING:
            self.was = health

    @property
    def trusted(self) -> bool:
        """Whether requests that wait for an answer from here should go on waiting.

        Failed requests alone do not speak for the others: those that took an endpoint out may have met a full backlog,
        and a probe will tell within its interval.
        """
        return self.waits is None and (self.tracker.verdict is not Health.UNHEALTHY or self.tracker.by_requests)

    @property
    def reason(self) -> str:
        if self.draining:
            return "draining"
        return self.waits or self.tracker.reason

    def engines(self) -> frozenset[int]:
        """Global ranks the engine has shown, by its sources or its metrics, whichever shows more of them."""
        from_page = frozenset(self.page.engines) if self.page is not None and self.page.labelled else frozenset()
        from_sources = frozenset(self.sources)
        return from_sources if len(from_sources) >= len(from_page) else from_page

    def endpoints(self) -> tuple[RankedEndpoint, ...]:
        return expand(self.spec, self.engines())

    def contact(self) -> Endpoint:
        """The address as such, for control calls."""
        return expand(self.spec, ())[0].endpoint

    def states(self) -> dict[str, EndpointState]:
        models = override_models(self.spec.models, self.models) if self.spec.models else self.models
        return {ranked.endpoint.id: self._state(ranked, models) for ranked in self.endpoints()}

    def kv_sources(self) -> dict[str, KvEventSource]:
        """Endpoint id -> event source; endpoints without one are absent."""
        if not self.spec.publishes_kv_events:
            return {}
        configured = self.spec.kv_events
        found = {}
        for endpoint, local, global_rank in self.endpoints():
            if configured is not None:
                found[endpoint.id] = configured_source(self.spec, configured, local or 0, global_rank)
            elif global_rank is not None and global_rank in self.sources:
                found[endpoint.id] = self.sources[global_rank]
        return found

    def _state(self, ranked: RankedEndpoint, models: Mapping[str, ModelCard]) -> EndpointState:
        endpoint, local, global_rank = ranked
        block_size = num_blocks = metrics = None
        if self.page is not None:
            metrics = self.page.metrics(global_rank if local is not None else None)
            engines = self.page.engines
            first = next(iter(engines.values()), None)
            engine = engines.get(global_rank, first) if global_rank is not None else first
            if engine is not None:
                block_size, num_blocks = engine.block_size, engine.num_blocks
        return EndpointState(
            endpoint=endpoint,
            health=self.health,
            models=models,
            block_size=block_size,
            num_blocks=num_blocks,
            on_trial=self.tracker.on_trial,
            since=self.since,
            index=self.index.get(endpoint.id, IndexState.APPROXIMATE),
            metrics=metrics,
            process_start=self.process_start,
            version=self.version,
        )
