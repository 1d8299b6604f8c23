"""Prober: asks one engine whether it lives and, when that is not known yet, what it serves.

One call is one round; when and how often is `router.pool.monitor`'s business.

An engine that is busy may be too slow for a probe. A probe that runs out of time therefore says nothing where bytes of
answers to requests have come from the engine meanwhile; one that is refused or answered with an error always counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from router.core import Endpoint, ModelCard
from router.pool.calls import CallError, ControlCalls
from router.pool.facts import FactsError, KvEventSource, read_event_sources, read_flag, read_models, read_version
from router.pool.pool import Pool
from router.pool.record import UpstreamRecord
from router.pool.scraper import Scraper
from router.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_MODELS: dict[str, ModelCard] = {}
_NO_SOURCES: dict[int, KvEventSource] = {}
_HELD = (("/is_sleeping", "asleep"), ("/is_paused", "paused"))
"""vLLM's development mode has these; ``/health`` says 200 in either state while requests wait for ever."""


class ProbePolicy(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 2.0
    timeout_s: float = 2.0
    refresh_models_s: float = 30.0
    """LoRA adapters come and go while an engine runs."""


class Prober:
    def __init__(
        self,
        pool: Pool,
        calls: ControlCalls,
        scraper: Scraper,
        *,
        clock: Clock,
        policy: ProbePolicy | None = None,
        heard_at: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        """`heard_at`: when, on any clock, answers to requests last brought bytes from an address; None: not lately."""
        self._pool = pool
        self._calls = calls
        self._scraper = scraper
        self._clock = clock
        self.policy = policy or ProbePolicy()
        self._heard_at = heard_at

    async def probe(self, upstream_id: str) -> None:
        """Health, and what is served where that is unknown or old."""
        record = self._pool.record(upstream_id)
        if record is None:
            return
        url = record.spec.url
        heard = self._heard_at(url)
        try:
            await self._get(record.contact(), record.spec.health_path)
        except CallError as error:
            heard_now = self._heard_at(url)
            if error.reason != "timeout" or heard_now is None or heard_now == heard:
                self._pool.probe_failed(upstream_id, error.reason)
            return
        held = await self._held(record)
        if self._pool.record(upstream_id) is not record:
            return
        self._pool.held(upstream_id, held)
        self._pool.probe_ok(upstream_id)
        known_at = record.discovered_at
        if known_at is None:
            await self.discover(upstream_id)
        elif self._clock() - known_at >= self.policy.refresh_models_s:
            await self.refresh_models(upstream_id)

    async def _held(self, record: UpstreamRecord) -> str | None:
        """Why the engine keeps requests waiting, if it says so. What it has no path for is not asked again."""
        for path, word in _HELD:
            if path in record.absent:
                continue
            try:
                if read_flag(await self._get(record.contact(), path)):
                    return word
            except CallError as error:
                if error.absent:
                    record.absent.add(path)
            except FactsError:
                record.absent.add(path)
        return None

    async def discover(self, upstream_id: str) -> None:
        """Everything an engine tells about itself; what it does not tell stays as it was."""
        record = self._pool.record(upstream_id)
        if record is None:
            return
        contact, host, incarnation = record.contact(), record.spec.host, record.process_start
        async with asyncio.TaskGroup() as group:
            asking_models = group.create_task(self._ask(contact, "/v1/models", read_models, _NO_MODELS))
            asking_version = group.create_task(self._ask(contact, "/version", read_version, None))
            asking_sources = group.create_task(
                self._ask(contact, "/kv_event_sources", lambda text: read_event_sources(text, host), _NO_SOURCES)
            )
            group.create_task(self._scraper.scrape(upstream_id))
        models, version, sources = asking_models.result(), asking_version.result(), asking_sources.result()
        if self._pool.record(upstream_id) is not record:
            return
        self._pool.learn(
            upstream_id,
            at=self._clock(),
            models=models,
            version=version,
            sources=sources,
            # A restart in between may have mixed the answers of two processes: then once more.
            complete=models is not None and sources is not None and incarnation in (None, record.process_start),
        )

    async def refresh_models(self, upstream_id: str) -> None:
        record = self._pool.record(upstream_id)
        if record is None:
            return
        models = await self._ask(record.contact(), "/v1/models", read_models, _NO_MODELS)
        if models is not None and self._pool.record(upstream_id) is record:
            # Not complete again if the engine restarted while it was being asked.
            complete = record.discovered_at is not None
            self._pool.learn(upstream_id, at=self._clock(), models=models, complete=complete)

    async def _ask(self, contact: Endpoint, path: str, read: Callable[[str], T], if_absent: T) -> T | None:
        """None: no answer now, ask again; `if_absent`: the engine has no such path."""
        try:
            return read(await self._get(contact, path))
        except CallError as error:
            if error.absent:
                return if_absent
            log.info("endpoint %s did not answer %s: %s", contact.id, path, error.reason)
        except FactsError as error:
            log.warning("endpoint %s answers %s with something else: %s", contact.id, path, error)
        return None

    def _get(self, contact: Endpoint, path: str) -> Awaitable[str]:
        return self._calls.get_text(contact, path, timeout_s=self.policy.timeout_s)
