"""Pool: all endpoints with their newest snapshots; the only writer of `EndpointState`.

Without I/O of its own: discovery, prober, scraper and the request path tell it what they saw, it decides what
that means and tells its observers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from router.core import Endpoint, EndpointState, Health, IndexState, ModelCard
from router.pool.bulletin import Bulletin
from router.pool.derived import Derived
from router.pool.ejection import may_eject
from router.pool.facts import KvEventSource
from router.pool.health import HealthPolicy, HealthTracker
from router.pool.observers import PoolObserver
from router.pool.reading import PageReading
from router.pool.record import UpstreamRecord
from router.pool.sources import Sources
from router.pool.spec import EndpointSpec
from router.ports import Clock

log = logging.getLogger(__name__)


class Pool:
    """Implements `router.ports.EndpointPool`. Upstream ids are `EndpointSpec.id`; calls about an upstream or endpoint
    that has meanwhile gone do nothing."""

    def __init__(
        self, health: HealthPolicy | None = None, *, max_ejected_share: float = 0.5, clock: Clock = time.monotonic
    ) -> None:
        """`clock` dates when endpoints come into service."""
        self._clock = clock
        self.judge_by(health or HealthPolicy(), max_ejected_share=max_ejected_share)
        self._sources = Sources()
        self._records: dict[str, UpstreamRecord] = {}
        self._derived = Derived()
        self._distrusted: set[str] = set()
        self._bulletin = Bulletin()
        self._refresh_models: Callable[[], Awaitable[None]] | None = None

    def judge_by(self, policy: HealthPolicy, *, max_ejected_share: float) -> None:
        """How what is seen from now on is judged. `max_ejected_share`: see `router.pool.ejection`."""
        self._policy = policy
        self._max_ejected_share = max_ejected_share

    # What the request path uses.

    def snapshot(self) -> tuple[EndpointState, ...]:
        return self._derived.snapshot()

    def get(self, endpoint_id: str) -> EndpointState | None:
        return self._derived.get(endpoint_id)

    def usable(self, endpoint_id: str) -> bool:
        state = self.get(endpoint_id)
        return state is not None and (state.health is Health.HEALTHY or state.health is Health.UNKNOWN)

    def report_failure(self, endpoint: Endpoint) -> None:
        record = self._with(endpoint.id)
        if record is not None:
            self._judge(record, record.tracker.request_failed(self._policy, self._may_eject(record)))

    def report_error(self, endpoint: Endpoint) -> None:
        record = self._with(endpoint.id)
        if record is not None:
            self._judge(record, record.tracker.request_errored(self._policy, self._may_eject(record)))

    def on_brink(self, endpoint: Endpoint) -> bool:
        record = self._with(endpoint.id)
        return record is not None and record.tracker.on_brink(self._policy)

    def excuse(self, endpoint: Endpoint) -> None:
        record = self._with(endpoint.id)
        if record is not None:
            record.tracker = record.tracker.excused()

    def report_success(self, endpoint: Endpoint) -> None:
        record = self._with(endpoint.id)
        if record is not None:
            tracker = record.tracker.request_ok()
            if tracker.on_trial is record.tracker.on_trial:
                record.tracker = tracker
            else:
                self._judge(record, tracker)

    async def refresh_models(self) -> None:
        """Through whoever watches the engines (`Monitor`); does nothing while nobody does."""
        if self._refresh_models is not None:
            await self._refresh_models()

    def refresh_models_by(self, refresh: Callable[[], Awaitable[None]] | None) -> None:
        self._refresh_models = refresh

    # What changes the set of endpoints.

    def set_endpoints(self, specs: Iterable[EndpointSpec], *, source: str = "static") -> None:
        """Replaces what `source` contributes. Of two sources that name the same endpoint the earlier one's counts.

        Removed endpoints leave the snapshot at once; changed ones keep what is known about them unless their URL is
        another. Raises `ConfigError`, changing nothing, when `specs` name an endpoint twice.
        """
        self._reconcile(self._sources.replace(source, specs))

    def upstream_of(self, endpoint_id: str) -> str | None:
        """The address that an endpoint is a rank of, or is; None: no such endpoint."""
        upstream_id = self._derived.upstream_of(endpoint_id) or endpoint_id
        return upstream_id if upstream_id in self._records else None

    def drain(self, endpoint_id: str, *, draining: bool = True) -> bool:
        """Takes an address (all ranks of it) out of choice, or back in. False: no such endpoint."""
        record = self.record(self._derived.upstream_of(endpoint_id) or endpoint_id)
        if record is None:
            return False
        record.draining = draining
        self._refresh(record)
        return True

    def _reconcile(self, wanted: Mapping[str, EndpointSpec]) -> None:
        for upstream_id, record in list(self._records.items()):
            spec = wanted.get(upstream_id)
            if spec is None or spec.url != record.spec.url:
                self._remove(upstream_id)
        for upstream_id, spec in wanted.items():
            known = self._records.get(upstream_id)
            if known is None:
                self._add(spec)
            elif known.spec != spec:
                known.spec = spec
                self._refresh(known)
        # Snapshot order is the configured order, whatever was added when.
        self._derived.arrange(wanted)

    def _add(self, spec: EndpointSpec) -> None:
        record = UpstreamRecord(spec)
        self._records[spec.id] = record
        self._derived.add(spec.id)
        log.info("endpoint %s added, role %s", spec.id, spec.role.value)
        self._refresh(record)
        self._bulletin.upstream_added(spec.id)

    def _remove(self, upstream_id: str) -> None:
        record = self._records.pop(upstream_id)
        states = self._derived.remove(upstream_id)
        log.info("endpoint %s removed", upstream_id)
        self._bulletin.upstream_removed(upstream_id)
        for state in states.values():
            self._bulletin.removed(state.endpoint)
        if upstream_id in self._distrusted:
            self._distrusted.discard(upstream_id)
            self._bulletin.trust_changed(record.spec.url, True)

    # What probes and scrapes saw.

    def upstream_ids(self) -> list[str]:
        return list(self._records)

    def record(self, upstream_id: str) -> UpstreamRecord | None:
        """For `router.pool` only: to read."""
        return self._records.get(upstream_id)

    def reasons(self) -> dict[str, str]:
        """Endpoint id -> why its health is what it is, in a few safe words."""
        return {
            endpoint_id: self._records[upstream_id].reason
            for upstream_id, states, _ in self._derived.all()
            for endpoint_id in states
        }

    def probe_ok(self, upstream_id: str) -> None:
        record = self.record(upstream_id)
        if record is None:
            return
        returned = record.tracker.verdict is Health.UNHEALTHY
        self._judge(record, record.tracker.probe_ok(self._policy))
        if returned and record.tracker.verdict is Health.HEALTHY and record.process_start is None:
            # It was away and does not tell its incarnation: take it for another process.
            self._restarted(record)

    def probe_failed(self, upstream_id: str, reason: str) -> None:
        """`reason`: a few words from a bounded set."""
        record = self.record(upstream_id)
        if record is not None:
            self._judge(record, record.tracker.probe_failed(self._policy, reason))

    def held(self, upstream_id: str, held: str | None) -> None:
        """The engine says that it keeps requests waiting: ``paused`` or ``asleep``; None: it does not."""
        record = self.record(upstream_id)
        if record is not None and record.held != held:
            record.held = held
            self._refresh(record)

    def stands_still(self, upstream_id: str) -> bool:
        """It works on none of its requests: it is out until `moves`. False: it may not be taken out now."""
        record = self.record(upstream_id)
        if record is None or record.stalled or not self._may_eject(record):
            return False
        record.stalled = True
        self._refresh(record)
        return True

    def moves(self, upstream_id: str) -> None:
        """Takes `stands_still` back; it is on trial."""
        record = self.record(upstream_id)
        if record is not None and record.stalled:
            record.stalled = False
            record.tracker = record.tracker.tried()
            self._refresh(record)

    def learn(
        self,
        upstream_id: str,
        *,
        at: float,
        models: Mapping[str, ModelCard] | None = None,
        version: str | None = None,
        sources: Mapping[int, KvEventSource] | None = None,
        complete: bool = False,
    ) -> None:
        """What the engine said about itself; None keeps what is known. `complete`: nothing is left to ask for now."""
        record = self.record(upstream_id)
        if record is None:
            return
        if models is not None:
            record.models = models
        if version is not None:
            record.version = version
        if sources is not None:
            record.sources = sources
        if complete:
            record.discovered_at = at
        self._refresh(record)

    def read_page(self, upstream_id: str, page: PageReading) -> None:
        """The newest ``/metrics``. An older page than the one known (a late answer) is passed over."""
        record = self.record(upstream_id)
        if record is None or (record.page is not None and page.taken_at < record.page.taken_at):
            return
        before = record.process_start
        record.page = page
        record.scrapes_failed = 0
        if page.process_start is not None:
            record.process_start = page.process_start
        self._refresh(record)
        if before is not None and page.process_start is not None and page.process_start != before:
            self._restarted(record)

    def scrape_failed(self, upstream_id: str) -> None:
        """The last metrics stay, and age."""
        record = self.record(upstream_id)
        if record is not None:
            record.scrapes_failed += 1

    def set_index(self, endpoint_id: str, index: IndexState) -> None:
        """How far the KV index can be believed for this endpoint from now on."""
        record = self._with(endpoint_id)
        if record is not None and record.index.get(endpoint_id, IndexState.APPROXIMATE) is not index:
            record.index[endpoint_id] = index
            self._refresh(record)

    # Telling others.

    def add_observer(self, observer: PoolObserver) -> None:
        """Tells it of all that is there already, then of every change."""
        self._bulletin.join(observer)
        for upstream_id, states, sources in self._derived.all():
            for endpoint_id, state in states.items():
                observer.added(state)
                source = sources.get(endpoint_id)
                if source is not None:
                    observer.kv_source_changed(state.endpoint, source)
            observer.upstream_added(upstream_id)

    def remove_observer(self, observer: PoolObserver) -> None:
        self._bulletin.leave(observer)

    # From records to states.

    def _with(self, endpoint_id: str) -> UpstreamRecord | None:
        """The record that has this endpoint now."""
        return self._records.get(self._derived.upstream_of(endpoint_id) or "")

    def _judge(self, record: UpstreamRecord, tracker: HealthTracker) -> None:
        if tracker != record.tracker:
            record.tracker = tracker
            self._refresh(record)

    def _may_eject(self, record: UpstreamRecord) -> bool:
        others = (other for other in self._records.values() if other is not record)
        return may_eject(record, others, self._max_ejected_share)

    def _restarted(self, record: UpstreamRecord) -> None:
        log.info("endpoint %s is a new process", record.spec.id)
        record.discovered_at = record.held = None
        record.stalled = False
        record.absent.clear()
        record.since = self._clock()
        self._refresh(record)
        for state in self._derived.states(record.spec.id).values():
            self._bulletin.restarted(state.endpoint)

    def _refresh(self, record: UpstreamRecord) -> None:
        """Derives the states anew; equal ones stay the same objects, differences are told."""
        record.note_health(self._clock())
        difference = self._derived.update(record)
        for state in difference.gone:
            record.index.pop(state.endpoint.id, None)
            self._bulletin.removed(state.endpoint)
        old_sources, new_sources = difference.old_sources, difference.new_sources
        for endpoint_id, state in difference.new.items():
            self._bulletin.state_changed(difference.old.get(endpoint_id), state, record.reason)
            if old_sources.get(endpoint_id) != new_sources.get(endpoint_id):
                self._bulletin.source_changed(state.endpoint, new_sources.get(endpoint_id))
        upstream_id = record.spec.id
        if record.trusted is (upstream_id in self._distrusted):
            (self._distrusted.discard if record.trusted else self._distrusted.add)(upstream_id)
            self._bulletin.trust_changed(record.spec.url, record.trusted)
