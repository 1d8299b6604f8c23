"""Fleet: the engines' side of a router, wired: which there are, how they are watched and how they are reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.assembly import engines
from router.certificates import Certificates
from router.controls import PoolCalls
from router.distrust import Distrust
from router.inflight import InflightTracker
from router.observability.supervisor import Supervisor
from router.pool.discovery import Discovery, Feeds
from router.pool.monitor import Monitor
from router.pool.pool import Pool
from router.pool.prober import Prober
from router.pool.scraper import Scraper
from router.pool.stalls import Stalls
from router.ports import Clock
from router.settings import Settings
from router.upstream.control import ControlClient
from router.upstream.relay import Relay


class Fleet:
    """`pool` and `monitor` know the engines; `relay` carries requests to them, `control` asks them small things."""

    def __init__(
        self,
        settings: Settings,
        *,
        certificates: Certificates,
        inflight: InflightTracker,
        supervisor: Supervisor,
        clock: Clock,
    ) -> None:
        """Opens nothing yet. Raises `ConfigError`."""
        tls = certificates.to_engines
        self.relay: Final = Relay(engines.relay_options(settings), ssl_context=tls)
        self.control: Final = ControlClient(verify=tls, tls_server_name=settings.upstream.tls_server_name)
        self.pool: Final = Pool(
            engines.health_policy(settings), max_ejected_share=settings.pool.max_ejected_share, clock=clock
        )
        self.pool.set_endpoints(engines.endpoint_specs(settings))
        self.pool.add_observer(Distrust(self.relay))
        calls = PoolCalls(self.control)
        self._scraper = scraper = Scraper(self.pool, calls, clock=clock, policy=engines.scrape_policy(settings))
        self._prober = prober = Prober(
            self.pool,
            calls,
            scraper,
            clock=clock,
            policy=engines.probe_policy(settings),
            heard_at=self.relay.heard_at,
        )
        self.monitor: Final = Monitor(self.pool, prober, scraper, supervisor, clock=clock)
        self._stalls = Stalls(
            self.pool,
            lambda endpoint_id: inflight.get(endpoint_id).requests,
            self.relay.heard_at,
            clock=clock,
            policy=engines.stall_policy(settings),
        )
        self._supervisor = supervisor
        self._feeds = Feeds(self.pool, supervisor)
        self._discoveries = engines.discoveries(settings)
        self._started_here: Mapping[str, Discovery] = {}

    def start(self, started_here: Mapping[str, Discovery]) -> None:
        """Begins to watch engines. `started_here` tells of those that this router starts itself."""
        self._started_here = started_here
        self._supervisor.spawn("stalls", self._stalls.run)
        self.monitor.start()
        self._feeds.follow({**self._discoveries, **started_here})

    def apply(self, settings: Settings) -> None:
        """Takes over which endpoints there are and how they are watched. Raises `ConfigError`, changing nothing."""
        discoveries = engines.discoveries(settings)
        self.pool.set_endpoints(engines.endpoint_specs(settings))
        self.pool.judge_by(engines.health_policy(settings), max_ejected_share=settings.pool.max_ejected_share)
        self._prober.policy, self._scraper.policy = engines.probe_policy(settings), engines.scrape_policy(settings)
        self._stalls.policy = engines.stall_policy(settings)
        self._feeds.follow({**discoveries, **self._started_here})

    async def stop(self) -> None:
        """Nobody watches any more; engines can still be reached."""
        await self._feeds.aclose()
        await self.monitor.stop()

    async def aclose(self) -> None:
        await self.relay.aclose()
        await self.control.aclose()
