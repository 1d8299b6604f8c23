"""Composition root: the only constructor of parts. No globals; every part gets what it needs as an argument."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, Protocol

import uvloop

from router import assembly
from router.api.admin import AdminGiven, Reloaded
from router.api.front import Front
from router.api.gate import Surface
from router.api.lifecycle import Lifecycle
from router.api.rest import Given, OnlyChild, Rest, Siblings
from router.capacity.engine_model import EngineModels
from router.certificates import Certificates
from router.controls import PoolCalls
from router.core import Leg
from router.director import Director
from router.distrust import Distrust
from router.eligible import Eligible
from router.flowcontrol.admission import Admission
from router.flowcontrol.key_limits import KeyLimits
from router.flowcontrol.saturation import Watch
from router.gate import Gate
from router.holders import ResponseHolders
from router.indexing import Indexing, Unshared
from router.inflight import InflightTracker
from router.legs import Legs
from router.loop import LoopLag
from router.observability.access import AccessLog
from router.observability.decisions import RecentDecisions
from router.observability.events import Observer, Observers
from router.observability.flow import FlowMetrics, Unobserved
from router.observability.logs import configure
from router.observability.metrics import CONTENT_TYPE, Metrics
from router.observability.sharing import SharingMetrics
from router.observability.supervisor import Supervisor
from router.orders import Administrator, Orders
from router.planned import planned
from router.planning.view import PlanMetrics
from router.pool.discovery import Discovery, Feeds
from router.pool.events import EventWiring
from router.pool.monitor import Monitor
from router.pool.pool import Pool
from router.pool.prober import Prober
from router.pool.scraper import Scraper
from router.pool.stalls import Stalls
from router.process import Process, listeners
from router.reload import ConfigWatcher, SettingsLoader
from router.retry_budget import RetryBudget
from router.settings import Settings
from router.sharing import Alone, Sharing, SharingView, no_notes, own_load
from router.slots import Slots
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

        self.certificates = Certificates(settings)
        tls = self.certificates.to_engines
        self._relay = Relay(assembly.relay_options(settings), ssl_context=tls)
        self._control = ControlClient(verify=tls, tls_server_name=settings.upstream.tls_server_name)

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
        self.engines = EngineModels(clock)
        self._shared = assembly.sharing(
            settings, memory, lambda: own_load(self.inflight, self.engines.estimate), lambda: self.gate.tell()
        )
        shared_index = None if self._shared is None else self._shared.index
        self.indexing = Indexing(
            shared_index or memory,
            self.pool.snapshot,
            assembly.indexing_settings(settings),
            shared_index or Unshared(),
        )
        self._events = EventWiring(self.pool, self.indexing.subscribe, self._gone, self.supervisor)
        self.tokenization = assembly.tokenization(settings, self._control, lambda: self.indexing.block_size, clock)

        metrics = Metrics(version("kvrouter")) if settings.metrics.enabled else None
        decisions = RecentDecisions(clock)
        shared = Alone() if self._shared is None else Sharing(self._shared.board.others)
        flow = None if metrics is None else FlowMetrics(metrics.registry, assembly.priorities(settings))
        self._watch = Watch()
        self.gate = Gate(
            queues=assembly.queues(settings),
            detector=assembly.detector(settings, self._watch),
            objectives=assembly.objectives(settings),
            inflight=self.inflight,
            shared=shared,
            observer=Unobserved() if flow is None else flow,
            clock=clock,
            holdback=settings.flow_control.holdback,
            estimates=self.engines.estimate,
            notes=no_notes if self._shared is None else self._shared.board.notes,
        )
        objectives = assembly.objectives(settings)
        self._planned = planned(
            settings,
            pool=self.pool,
            engines=self.engines,
            inflight=self.inflight,
            routers=lambda: 1 if self._shared is None else max(self._shared.board.routers, 1),
            priority_of=lambda request: objectives.priority(request.caller),
            clock=clock,
        )
        observers: list[Observer] = [self.engines, self.gate, decisions]
        if self._planned is not None:
            observers.append(self._planned.listener)
        if metrics is not None:
            observers.append(metrics)
        if flow is not None:
            observers.append(flow)
        if settings.server.access_log:
            observers.append(AccessLog())
        self._limits = KeyLimits(assembly.key_rates(settings), clock)
        observers.append(self._limits)
        self._rates = assembly.rate_sharing(settings, self._limits, self._shared)
        self._request_log = assembly.request_log(settings)
        if self._request_log is not None:
            observers.append(self._request_log)
        observer = Observers(*observers)
        holders = ResponseHolders()
        admission = Admission(settings.server.max_concurrent_requests)
        self.director = Director(
            eligible=Eligible(
                pool=self.pool,
                index=self.indexing,
                inflight=self.inflight,
                shared=shared,
                holders=holders,
                clock=clock,
                estimates=self.engines.estimate,
                slow_start_s=settings.pool.slow_start_s,
            ),
            refresh_models=self.monitor.refresh_models,
            tokenization=self.tokenization,
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
            gate=self.gate,
            admission=admission,
            holders=holders,
            observer=observer,
            clock=clock,
            rng=rng,
            prompt_limit=assembly.prompt_limit(settings),
            wake=None if self._planned is None else self._planned.wake,
        )
        planning = None if self._planned is None else self._planned.planning
        views = Views(
            version=version("kvrouter"),
            pool=self.pool,
            indexing=self.indexing,
            inflight=self.inflight,
            gate=self.gate,
            lifecycle=self.lifecycle,
            supervisor=self.supervisor,
            metrics=metrics,
            decisions=decisions,
            keys=lambda: self.front.keys,
            plugin_failures=self._plugin_failures,
            rate_limited=self._limits.refused,
            loop_lag=self._lag,
            slots=self._slots(admission, holders, decisions),
            planning=planning,
            clock=clock,
        )
        if metrics is not None:
            metrics.watch(views)
        if flow is not None:
            flow.watch(views)
        if metrics is not None and planning is not None:
            metrics.registry.register(PlanMetrics(lambda: planning.status, clock))
        if metrics is not None:
            self.pool.add_observer(SeriesOfEndpoints(metrics))
            if self._shared is not None:
                metrics.registry.register(SharingMetrics(SharingView(self._shared.index, self._shared.board)))
        self.metrics_page = views.metrics_page
        family = siblings or OnlyChild()
        self.orders = Orders(self.pool, self.lifecycle)
        self.pool.add_observer(self.orders)
        self.administrator = Administrator(self.orders, self.lifecycle, views.describe, family)
        self._gates = assembly.gates(settings, lambda: self.front.keys)
        keys, front_settings = assembly.key_ring(settings), assembly.front_settings(settings)
        self._fronts = {
            surface: Front(
                rest=Rest(
                    Given(
                        view=views,
                        lifecycle=self.lifecycle,
                        siblings=family,
                        metrics_content_type=CONTENT_TYPE,
                        admin=AdminGiven(self.administrator, gate),
                        surface=surface,
                        protect_metrics=settings.server.protect_metrics,
                    )
                ),
                journey=self.director,
                lifecycle=self.lifecycle,
                keys=keys,
                settings=front_settings,
                limits=self._limits,
                clock=clock,
                gate=gate,
                surface=surface,
            )
            for surface, gate in self._gates.items()
        }
        self.front = next(front for surface, front in self._fronts.items() if surface is not Surface.ADMINISTRATION)
        self.asgi: Any = assembly.with_cors(self.front, settings)
        self.admin_asgi: Any = self._fronts.get(Surface.ADMINISTRATION)
        """What the listener of its own serves (`server.admin_port`); None: there is none."""

    def _slots(self, admission: Admission, holders: ResponseHolders, decisions: RecentDecisions) -> Slots:
        relay, tokenization = self._relay, self.tokenization
        return Slots(
            self.inflight,
            self.supervisor,
            in_use={
                "requests": lambda: self.lifecycle.active,
                "admitted": lambda: admission.active,
                "queued": lambda: self.gate.queued,
                "held_places": self.gate.held,
                "upstream_busy": lambda: sum(count.open - count.idle for count in relay.counts().values()),
                "limited": lambda: sum(self._limits.active().values()),
                "tokenizing": lambda: tokenization.under_way,
            },
            kept={
                "upstream_idle": lambda: sum(count.idle for count in relay.counts().values()),
                "response_holders": lambda: len(holders),
                "recent_decisions": lambda: len(decisions),
            },
        )

    def _started_here(self) -> Mapping[str, Discovery]:
        return {} if self._planned is None else self._planned.discoveries

    def _gone(self, endpoint_id: str) -> None:
        self.indexing.forget(endpoint_id)
        self.engines.forget(endpoint_id)
        self._watch.forget(endpoint_id)

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
        if self._rates is not None:
            self.supervisor.spawn("rates", self._rates.run)
        self._events.start()
        self.monitor.start()
        self._feeds.follow({**self._discoveries, **self._started_here()})
        if self._planned is not None:
            self.supervisor.spawn("planner", self._planned.planning.run)
            self.supervisor.spawn("waking", self._planned.planning.watch)
        # A first round before listening: the first request then finds models, block sizes and health known.
        await self.monitor.probe_all()
        await self.tokenization.prepare(self.pool.snapshot())

    async def apply(self, settings: Settings) -> None:
        """Takes over what may change live, whole or not at all. Raises `ConfigError`, changing nothing."""
        scheduler = assembly.scheduler(settings, self._plugin_failed)
        keys, admins = assembly.key_ring(settings), assembly.admin_ring(settings)
        discoveries = assembly.discoveries(settings)
        self.pool.set_endpoints(assembly.endpoint_specs(settings))
        self._feeds.follow({**discoveries, **self._started_here()})
        self.director.scheduler = scheduler
        self.director.prompt_limit = assembly.prompt_limit(settings)
        self._limits.apply(assembly.key_rates(settings))
        for front in self._fronts.values():
            front.keys = keys
        for gate in self._gates.values():
            gate.admins = admins

    async def aclose(self) -> None:
        """Ends everything that was started. Idempotent."""
        self.gate.close()
        await self._feeds.aclose()
        await self.monitor.stop()
        await self._events.aclose()
        await self.supervisor.aclose()
        if self._planned is not None:
            await self._planned.planning.aclose()
        await self.indexing.aclose()
        if self._shared is not None:
            await self._shared.index.aclose()
            await self._shared.board.aclose()
        if self._rates is not None:
            await self._rates.aclose()
        await self.tokenization.aclose()
        await self._relay.aclose()
        await self._control.aclose()
        if self._request_log is not None:
            await asyncio.to_thread(self._request_log.close)


class Family(Siblings, Protocol):
    """Siblings, and how this process joins them."""

    async def begin(self, page: Callable[[], bytes | None], orders: Orders) -> None:
        """This process serves from now on; `page` is its own metrics page, `orders` what it has been told to do."""
        ...

    async def aclose(self) -> None: ...


class _Alone(OnlyChild):
    async def begin(self, page: Callable[[], bytes | None], orders: Orders) -> None: ...

    async def aclose(self) -> None: ...


def serve(settings: Settings, loader: SettingsLoader | None = None) -> int:
    """Serves until told to end. Returns the exit code. Raises `ConfigError`, and OSError when it cannot listen."""
    configure(settings.log.level, settings.log.format)
    with listeners(settings) as (listener, admin_listener):
        return serve_on(listener, settings, loader, _Alone(), admin_listener)


def serve_on(
    listener: socket.socket,
    settings: Settings,
    loader: SettingsLoader | None,
    family: Family,
    admin_listener: socket.socket | None = None,
) -> int:
    """`serve` on listeners that are there already, beside others or alone."""
    configure(settings.log.level, settings.log.format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, loader, listener, family, admin_listener))
    return 0


async def _serve(
    settings: Settings,
    loader: SettingsLoader | None,
    listener: socket.socket,
    family: Family,
    admin_listener: socket.socket | None,
) -> None:
    async def apply(changed: Settings) -> None:
        await app.apply(changed)

    def renew() -> None:
        app.certificates.renew()

    watcher = None if loader is None else ConfigWatcher(settings, loader, apply, renew)
    app = App(settings, family)
    try:
        await app.start()
        if watcher is not None:
            app.supervisor.spawn("configuration", watcher.run)
            app.administrator.reloads_by(_reloading(watcher))
        process = Process(
            app.asgi,
            app.lifecycle,
            listener,
            settle_s=settings.server.settle_s,
            grace_s=settings.server.shutdown_grace_s,
            limits=assembly.client_limits(settings),
            keepalive_s=settings.server.keepalive_s,
            on_reload=None if watcher is None else watcher.request,
            tls=app.certificates.to_clients,
            admin=None if admin_listener is None else (app.admin_asgi, admin_listener),
        )
        host, port = listener.getsockname()[:2]
        scheme = "http" if app.certificates.to_clients is None else "https"
        logger.info("serving on %s://%s:%d, %d endpoints", scheme, host, port, len(app.pool.snapshot()))
        # What lives as long as the process is no work for the garbage collector.
        gc.collect()
        gc.freeze()
        await family.begin(app.metrics_page, app.orders)
        await process.run()
    finally:
        await family.aclose()
        await app.aclose()


def _reloading(watcher: ConfigWatcher) -> Callable[[], Awaitable[Reloaded]]:
    async def reload() -> Reloaded:
        change = await watcher.attempt()
        return Reloaded(change.live, change.restart)

    return reload
