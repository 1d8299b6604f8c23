"""Composition root: the only constructor of parts. No globals; every part gets what it needs as an argument."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from importlib.metadata import version
from typing import Any

from router.api.lifecycle import Lifecycle
from router.api.rest import OnlyChild, Siblings
from router.assembly import clients, engines, flow, routing
from router.assembly.shared import order_sharing, rate_sharing, sharing
from router.capacity.engine_model import EngineModels
from router.certificates import Certificates
from router.core import Leg
from router.director import Director
from router.eligible import Eligible
from router.fleet import Fleet
from router.flowcontrol.admission import Admission
from router.flowcontrol.hearsay import nothing_told
from router.flowcontrol.key_limits import KeyLimits
from router.flowcontrol.saturation import Watch
from router.gate import Gate
from router.holders import ResponseHolders
from router.indexing import Indexing, Unshared
from router.inflight import InflightTracker
from router.legs import Legs
from router.loop import LoopLag
from router.observability.events import Observers
from router.observability.supervisor import Supervisor
from router.observing import Observing
from router.orders import Administrator, Orders
from router.planned import planned
from router.pool.events import EventWiring
from router.retry_budget import RetryBudget
from router.settings import Settings
from router.sharing import Alone, Sharing, own_load
from router.slots import Slots
from router.surfaces import Surfaces
from router.views import Views

logger = logging.getLogger(__name__)


class App:
    """One router: its parts, wired. `asgi` is the application; `start` and `aclose` frame its life."""

    def __init__(self, settings: Settings, siblings: Siblings | None = None) -> None:
        """Opens nothing yet. Raises `ConfigError`."""
        self._clock = clock = time.monotonic
        self._plugin_failures: Counter[str] = Counter()
        self._lag = LoopLag(clock)
        self.lifecycle = Lifecycle()
        self.supervisor = Supervisor(clock=clock)
        self.inflight = InflightTracker()
        self.certificates = Certificates(settings)
        self._fleet = Fleet(
            settings,
            certificates=self.certificates,
            inflight=self.inflight,
            supervisor=self.supervisor,
            clock=clock,
        )
        self.pool, self._relay = self._fleet.pool, self._fleet.relay

        memory = routing.memory_index(settings, clock)
        self.engines = EngineModels(clock)
        self._shared = sharing(
            settings, memory, lambda: own_load(self.inflight, self.engines.estimate), lambda: self.gate.tell()
        )
        shared_index = None if self._shared is None else self._shared.index
        self.indexing = Indexing(
            shared_index or memory,
            self.pool.snapshot,
            routing.indexing_settings(settings),
            shared_index or Unshared(),
        )
        self._events = EventWiring(self.pool, self.indexing.subscribe, self._gone, self.supervisor)
        self.tokenization = routing.tokenization(settings, self._fleet.control, lambda: self.indexing.block_size, clock)

        self._others = Alone() if self._shared is None else Sharing(self._shared.board.others)
        self._observing = Observing(settings, clock)
        self._watch = Watch()
        self.gate = self._gate(settings)
        self._planned = planned(
            settings,
            pool=self.pool,
            engines=self.engines,
            inflight=self.inflight,
            routers=lambda: 1 if self._shared is None else max(self._shared.board.routers, 1),
            priority_of=lambda request: self.gate.priority(request.caller),
            clock=clock,
        )
        self._limits = KeyLimits(clients.key_rates(settings), clock)
        self._rates = rate_sharing(settings, self._limits, self._shared)
        self._admission = Admission(settings.server.max_concurrent_requests)
        self._holders = ResponseHolders()
        self._eligible = Eligible(
            pool=self.pool,
            index=self.indexing,
            inflight=self.inflight,
            shared=self._others,
            holders=self._holders,
            clock=clock,
            estimates=self.engines.estimate,
            slow_start_s=settings.pool.slow_start_s,
        )
        self.director = self._director(settings)

        planning = None if self._planned is None else self._planned.planning
        views = Views(
            version=version("kvrouter"),
            pool=self.pool,
            indexing=self.indexing,
            inflight=self.inflight,
            gate=self.gate,
            lifecycle=self.lifecycle,
            supervisor=self.supervisor,
            metrics=self._observing.metrics,
            decisions=self._observing.decisions,
            keys=lambda: self._surfaces.keys,
            plugin_failures=self._plugin_failures,
            rate_limited=self._limits.refused,
            loop_lag=self._lag,
            slots=self._slots(),
            planning=planning,
            clock=clock,
        )
        self._observing.watch(views, self.pool, planning, self._shared)
        self.metrics_page = views.metrics_page
        family = siblings or OnlyChild()
        self.orders = Orders(self.pool, self.lifecycle)
        self.pool.add_observer(self.orders)
        self._order_sharing = order_sharing(settings, self.orders, self._shared, clock)
        self.administrator = Administrator(self.orders, self.lifecycle, views.describe, family, self._order_sharing)
        self._surfaces = Surfaces(
            settings,
            view=views,
            lifecycle=self.lifecycle,
            siblings=family,
            administration=self.administrator,
            journey=self.director,
            limits=self._limits,
            observer=self._observing,
            clock=clock,
        )
        self.asgi: Any = self._surfaces.asgi
        self.admin_asgi: Any = self._surfaces.admin_asgi
        """What the listener of its own serves (`server.admin_port`); None: there is none."""

    def _gate(self, settings: Settings) -> Gate:
        return Gate(
            policy=flow.policy(settings, self._watch),
            inflight=self.inflight,
            shared=self._others,
            observer=self._observing.of_flow,
            clock=self._clock,
            estimates=self.engines.estimate,
            notes=nothing_told if self._shared is None else self._shared.board.notes,
        )

    def _director(self, settings: Settings) -> Director:
        rng = random.Random()
        listeners = () if self._planned is None else (self._planned.listener,)
        observer = Observers(self.engines, self.gate, *listeners, *self._observing.of_requests(), self._limits)
        return Director(
            eligible=self._eligible,
            refresh_models=self._fleet.monitor.refresh_models,
            tokenization=self.tokenization,
            scheduler=routing.scheduler(settings, self._plugin_failed),
            legs=Legs(
                upstream=self._relay,
                pool=self.pool,
                index=self.indexing,
                inflight=self.inflight,
                observer=observer,
                holders=self._holders,
                clock=self._clock,
                rng=rng,
                budget=RetryBudget(ratio=settings.retries.budget_ratio, reserve=settings.retries.budget_reserve),
                settings=engines.leg_settings(settings),
            ),
            gate=self.gate,
            admission=self._admission,
            holders=self._holders,
            observer=observer,
            clock=self._clock,
            rng=rng,
            prompt_limit=clients.prompt_limit(settings),
            wake=None if self._planned is None else self._planned.wake,
        )

    def _slots(self) -> Slots:
        relay, tokenization = self._relay, self.tokenization
        return Slots(
            self.inflight,
            self.supervisor,
            in_use={
                "requests": lambda: self.lifecycle.active,
                "admitted": lambda: self._admission.active,
                "queued": lambda: self.gate.queued,
                "held_places": self.gate.held,
                "upstream_busy": lambda: sum(count.open - count.idle for count in relay.counts().values()),
                "limited": lambda: sum(self._limits.active().values()),
                "tokenizing": lambda: tokenization.under_way,
            },
            kept={
                "upstream_idle": lambda: sum(count.idle for count in relay.counts().values()),
                "response_holders": lambda: len(self._holders),
                "recent_decisions": lambda: len(self._observing.decisions),
            },
        )

    def _gone(self, endpoint_id: str) -> None:
        self.indexing.forget(endpoint_id)
        self.engines.forget(endpoint_id)
        self._watch.forget(endpoint_id)
        if self._planned is not None:
            self._planned.startups.forget(endpoint_id)

    def _plugin_failed(self, plugin: str, leg: Leg, error: Exception) -> None:
        self._plugin_failures[plugin] += 1
        if self._plugin_failures[plugin] == 1:
            logger.error("plugin %s failed in the %s profile and is skipped", plugin, leg.value, exc_info=error)

    async def start(self) -> None:
        """Loads tokenizers and begins to watch engines. Raises `ConfigError`."""
        self._observing.start()
        await self.tokenization.start()
        if self._shared is not None:
            self._shared.board.start()
            await self._shared.index.start()
        self.supervisor.spawn("index housekeeping", self.indexing.run)
        self.supervisor.spawn("loop lag", self._lag.run)
        if self._rates is not None:
            self.supervisor.spawn("rates", self._rates.run)
        if self._order_sharing is not None:
            await self.agree()
            self.supervisor.spawn("orders", self._order_sharing.run)
        self._events.start()
        self._fleet.start({} if self._planned is None else self._planned.discoveries)
        if self._planned is not None:
            self.supervisor.spawn("planner", self._planned.planning.run)
            self.supervisor.spawn("waking", self._planned.planning.watch)
        # A first round before listening: the first request then finds models, block sizes and health known.
        await self._fleet.monitor.probe_all()
        await self.tokenization.prepare(self.pool.snapshot())

    async def agree(self) -> None:
        """Takes over the orders that are in force at all routers, where Redis tells them."""
        if self._order_sharing is not None:
            await self._order_sharing.exchange()

    async def apply(self, settings: Settings) -> None:
        """Takes over what may change live, whole or not at all. Raises `ConfigError`, changing nothing."""
        scheduler = routing.scheduler(settings, self._plugin_failed)
        keys, admins = clients.key_ring(settings), clients.admin_ring(settings)
        front_settings, prompt_limit = clients.front_settings(settings), clients.prompt_limit(settings)
        policy, rates = flow.policy(settings, self._watch), clients.key_rates(settings)
        self._fleet.apply(settings)
        self.director.scheduler = scheduler
        self.director.prompt_limit = prompt_limit
        self._limits.apply(rates)
        self.gate.apply(policy)
        self._observing.apply(settings)
        self._admission.limit = settings.server.max_concurrent_requests
        self._eligible.slow_start_s = settings.pool.slow_start_s
        self._surfaces.apply(keys, admins, front_settings)

    async def aclose(self) -> None:
        """Ends everything that was started. Idempotent."""
        self.gate.close()
        await self._fleet.stop()
        await self._events.aclose()
        await self.supervisor.aclose()
        if self._planned is not None:
            await self._planned.planning.aclose()
        await self.indexing.aclose()
        if self._shared is not None:
            await self._shared.index.aclose()
            await self._shared.board.aclose()
        for part in (self._rates, self._order_sharing):
            if part is not None:
                await part.aclose()
        await self.tokenization.aclose()
        await self._fleet.aclose()
        await self._observing.aclose()
