"""Composition root: the only constructor of parts. No globals; every part gets what it needs as an argument."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import uvloop

from router import assembly
from router.api.front import Front
from router.api.lifecycle import Lifecycle
from router.api.rest import Given, OnlyChild, Rest, Siblings
from router.capacity.engine_model import EngineModels
from router.controls import PoolCalls
from router.core import Leg
from router.director import Director
from router.distrust import Distrust
from router.flowcontrol.admission import Admission
from router.holders import ResponseHolders
from router.indexing import Indexing, Unshared
from router.inflight import InflightTracker
from router.legs import Legs
from router.loop import LoopLag
from router.observability.access import AccessLog
from router.observability.decisions import RecentDecisions
from router.observability.events import Observer, Observers
from router.observability.logs import configure
from router.observability.metrics import CONTENT_TYPE, Metrics
from router.observability.sharing import SharingMetrics
from router.observability.supervisor import Supervisor
from router.pool.discovery import Feeds
from router.pool.events import EventWiring
from router.pool.monitor import Monitor
from router.pool.pool import Pool
from router.pool.prober import Prober
from router.pool.scraper import Scraper
from router.pool.stalls import Stalls
from router.process import Process, listen
from router.reload import ConfigWatcher, SettingsLoader
from router.retry_budget import RetryBudget
from router.settings import Settings
from router.sharing import Alone, Sharing, SharingView, own_load
from router.upstream.control import ControlClient
from router.upstream.relay import Relay
from router.views import SeriesOfEndpoints, Views

logger = logging.getLogger(__name__)


class App:
    """One router: its parts, wired. `asgi` is the application; `start` and `aclose` frame its life."""

    def __init__(self, settings: Settings, siblings: Siblings | None = None) -> None:
        """Opens nothing yet. Raises `ConfigError`."""
        clock = time.monotonic
        rng = random.Random()
        self._settings = settings
        self._plugin_failures: Counter[str] = Counter()
        self.lifecycle = Lifecycle()
        self.supervisor = Supervisor(clock=clock)
        self.inflight = InflightTracker()
        self._lag = LoopLag(clock)

        tls = assembly.tls_context(settings)
        self._relay = Relay(assembly.relay_options(settings), ssl_context=tls)
        self._control = ControlClient(verify=tls)

        self.pool = Pool(
            assembly.health_policy(settings), max_ejected_share=settings.pool.max_ejected_share, clock=clock
        )
        self.pool.set_endpoints(assembly.endpoint_specs(settings))
        self.pool.add_observer(Distrust(self._relay))
        calls = PoolCalls(self._control)
        scraper = Scraper(self.pool, calls, clock=clock, policy=assembly.scrape_policy(settings))
        prober = Prober(
            self.pool,
            calls,
            scraper,
            clock=clock,
            policy=assembly.probe_policy(settings),
            heard_at=self._relay.heard_at,
        )
        self.monitor = Monitor(self.pool, prober, scraper, self.supervisor, clock=clock)
        self._stalls = Stalls(
            self.pool,
            lambda endpoint_id: self.inflight.get(endpoint_id).requests,
            self._relay.heard_at,
            clock=clock,
            policy=assembly.stall_policy(settings),
        )
        self._feeds = Feeds(self.pool, self.supervisor)
        self._discoveries = assembly.discoveries(settings)

        memory = assembly.memory_index(settings, clock)
        self._shared = assembly.sharing(settings, memory, lambda: own_load(self.inflight))
        shared_index = None if self._shared is None else self._shared.index
        self.indexing = Indexing(
            shared_index or memory,
            self.pool.snapshot,
            assembly.indexing_settings(settings),
            shared_index or Unshared(),
        )
        self._events = EventWiring(self.pool, self.indexing.subscribe, self._gone, self.supervisor)
        self.tokenization = assembly.tokenization(settings, self._control, lambda: self.indexing.block_size, clock)

        self.engines = EngineModels(clock)
        metrics = Metrics(version("kvrouter")) if settings.metrics.enabled else None
        decisions = RecentDecisions(clock)
        observers: list[Observer] = [self.engines, decisions]
        if metrics is not None:
            observers.append(metrics)
        if settings.server.access_log:
            observers.append(AccessLog())
        self._request_log = assembly.request_log(settings)
        if self._request_log is not None:
            observers.append(self._request_log)
        observer = Observers(*observers)
        holders = ResponseHolders()
        self.director = Director(
            pool=self.pool,
            refresh_models=self.monitor.refresh_models,
            tokenization=self.tokenization,
            index=self.indexing,
            scheduler=assembly.scheduler(settings, self._plugin_failed),
            legs=Legs(
                upstream=self._relay,
                pool=self.pool,
                index=self.indexing,
                inflight=self.inflight,
                observer=observer,
                holders=holders,
                clock=clock,
                rng=rng,
                budget=RetryBudget(ratio=settings.retries.budget_ratio, reserve=settings.retries.budget_reserve),
                settings=assembly.leg_settings(settings),
            ),
            inflight=self.inflight,
            shared=Alone() if self._shared is None else Sharing(self._shared.board.others),
            admission=Admission(settings.server.max_concurrent_requests),
            holders=holders,
            observer=observer,
            clock=clock,
            rng=rng,
            estimates=self.engines.estimate,
            slow_start_s=settings.pool.slow_start_s,
        )
        views = Views(
            version=version("kvrouter"),
            pool=self.pool,
            indexing=self.indexing,
            inflight=self.inflight,
            lifecycle=self.lifecycle,
            supervisor=self.supervisor,
            metrics=metrics,
            decisions=decisions,
            keys=lambda: self.front.keys,
            plugin_failures=self._plugin_failures,
            loop_lag=self._lag,
            clock=clock,
        )
        if metrics is not None:
            metrics.watch(views)
            self.pool.add_observer(SeriesOfEndpoints(metrics))
            if self._shared is not None:
                metrics.registry.register(SharingMetrics(SharingView(self._shared.index, self._shared.board)))
        self.metrics_page = views.metrics_page
        self.front = Front(
            rest=Rest(Given(views, self.lifecycle, siblings or OnlyChild(), CONTENT_TYPE)),
            journey=self.director,
            lifecycle=self.lifecycle,
            keys=assembly.key_ring(settings),
            settings=assembly.front_settings(settings),
            clock=clock,
        )
        self.asgi: Any = assembly.with_cors(self.front, settings)

    def _gone(self, endpoint_id: str) -> None:
        self.indexing.forget(endpoint_id)
        self.engines.forget(endpoint_id)

    def _plugin_failed(self, plugin: str, leg: Leg, error: Exception) -> None:
        self._plugin_failures[plugin] += 1
        if self._plugin_failures[plugin] == 1:
            logger.error("plugin %s failed in the %s profile and is skipped", plugin, leg.value, exc_info=error)

    async def start(self) -> None:
        """Loads tokenizers and begins to watch engines. Raises `ConfigError`."""
        if self._request_log is not None:
            self._request_log.start()
        await self.tokenization.start()
        if self._shared is not None:
            self._shared.board.start()
            await self._shared.index.start()
        self.supervisor.spawn("index housekeeping", self.indexing.run)
        self.supervisor.spawn("loop lag", self._lag.run)
        self.supervisor.spawn("stalls", self._stalls.run)
        self._events.start()
        self.monitor.start()
        self._feeds.follow(self._discoveries)
        # A first round before listening: the first request then finds models, block sizes and health known.
        await self.monitor.probe_all()
        await self.tokenization.prepare(self.pool.snapshot())

    async def apply(self, settings: Settings) -> None:
        """Takes over what may change live, whole or not at all. Raises `ConfigError`, changing nothing."""
        scheduler = assembly.scheduler(settings, self._plugin_failed)
        keys = assembly.key_ring(settings)
        discoveries = assembly.discoveries(settings)
        self.pool.set_endpoints(assembly.endpoint_specs(settings))
        self._feeds.follow(discoveries)
        self.director.scheduler = scheduler
        self.front.keys = keys

    async def aclose(self) -> None:
        """Ends everything that was started. Idempotent."""
        await self._feeds.aclose()
        await self.monitor.stop()
        await self._events.aclose()
        await self.supervisor.aclose()
        await self.indexing.aclose()
        if self._shared is not None:
            await self._shared.index.aclose()
            await self._shared.board.aclose()
        await self.tokenization.aclose()
        await self._relay.aclose()
        await self._control.aclose()
        if self._request_log is not None:
            await asyncio.to_thread(self._request_log.close)


class Family(Siblings, Protocol):
    """Siblings, and how this process joins them."""

    async def begin(self, page: Callable[[], bytes | None]) -> None:
        """This process serves from now on; `page` is its own metrics page."""
        ...

    async def aclose(self) -> None: ...


class _Alone(OnlyChild):
    async def begin(self, page: Callable[[], bytes | None]) -> None: ...

    async def aclose(self) -> None: ...


def serve(settings: Settings, loader: SettingsLoader | None = None) -> int:
    """Serves until told to end. Returns the exit code. Raises `ConfigError`, and OSError when it cannot listen."""
    configure(settings.log.level, settings.log.format)
    listener = listen(settings.server.host, settings.server.port)
    try:
        return serve_on(listener, settings, loader, _Alone())
    finally:
        listener.close()


def serve_on(listener: socket.socket, settings: Settings, loader: SettingsLoader | None, family: Family) -> int:
    """`serve` on a listener that is there already, beside others or alone."""
    configure(settings.log.level, settings.log.format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, loader, listener, family))
    return 0


async def _serve(settings: Settings, loader: SettingsLoader | None, listener: socket.socket, family: Family) -> None:
    async def apply(changed: Settings) -> None:
        await app.apply(changed)

    watcher = None if loader is None else ConfigWatcher(settings, loader, apply)
    app = App(settings, family)
    try:
        await app.start()
        if watcher is not None:
            app.supervisor.spawn("configuration", watcher.run)
        process = Process(
            app.asgi,
            app.lifecycle,
            listener,
            settle_s=settings.server.settle_s,
            grace_s=settings.server.shutdown_grace_s,
            max_header_bytes=settings.server.max_header_bytes,
            keepalive_s=settings.server.keepalive_s,
            on_reload=None if watcher is None else watcher.request,
        )
        host, port = listener.getsockname()[:2]
        logger.info("serving on http://%s:%d, %d endpoints", host, port, len(app.pool.snapshot()))
        # What lives as long as the process is no work for the garbage collector.
        gc.collect()
        gc.freeze()
        await family.begin(app.metrics_page)
        await process.run()
    finally:
        await family.aclose()
        await app.aclose()
