"""A router at work: its process, its listeners, its configuration watched; alone, or beside others on one listener."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import uvloop

from router.api.admin import Reloaded
from router.api.rest import OnlyChild, Siblings
from router.app import App
from router.assembly import clients
from router.listening import address, listeners
from router.observability.logs import configure
from router.orders import Orders
from router.process import Process
from router.reload import ConfigWatcher, SettingsLoader
from router.settings import Settings

logger = logging.getLogger(__name__)


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
    """Serves until told to end. Returns the exit code. Raises `ConfigError`."""
    configure(settings.log.level, settings.log.format)
    with listeners(settings) as (listener, admin_listener):
        return serve_on(listener, settings, loader, _Alone(), admin_listener)


def serve_on(
    listener: socket.socket,
    settings: Settings,
    loader: SettingsLoader | None,
    family: Family,
    admin_listener: socket.socket | None = None,
    *,
    who: str | None = None,
) -> int:
    """`serve` on listeners that are there already, beside others or alone. `who`: its name in each line of the log."""
    configure(settings.log.level, settings.log.format, who)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, loader, listener, family, admin_listener, who))
    return 0


async def _serve(
    settings: Settings,
    loader: SettingsLoader | None,
    listener: socket.socket,
    family: Family,
    admin_listener: socket.socket | None,
    who: str | None,
) -> None:
    async def apply(changed: Settings) -> None:
        await app.apply(changed)
        server = changed.server
        limits = clients.client_limits(changed)
        process.apply(settle_s=server.settle_s, grace_s=server.shutdown_grace_s, limits=limits)
        configure(changed.log.level, changed.log.format, who)

    def renew() -> None:
        app.certificates.renew()

    watcher = None if loader is None else ConfigWatcher(settings, loader, apply, renew)
    app = App(settings, family)
    try:
        await app.start()
        process = Process(
            app.asgi,
            app.lifecycle,
            listener,
            settle_s=settings.server.settle_s,
            grace_s=settings.server.shutdown_grace_s,
            limits=clients.client_limits(settings),
            keepalive_s=settings.server.keepalive_s,
            on_reload=None if watcher is None else watcher.request,
            tls=app.certificates.to_clients,
            admin=None if admin_listener is None else (app.admin_asgi, admin_listener),
        )
        if watcher is not None:
            app.supervisor.spawn("configuration", watcher.run)
            app.administrator.reloads_by(_reloading(watcher))
        scheme = "http" if app.certificates.to_clients is None else "https"
        logger.info("serving on %s://%s, %d endpoints", scheme, address(listener), len(app.pool.snapshot()))
        # What lives as long as the process is no work for the garbage collector.
        gc.collect()
        gc.freeze()
        await family.begin(app.metrics_page, app.orders)
        # Siblings tell what was ordered on this host; what all routers agreed on meanwhile counts for more.
        await app.agree()
        await process.run()
    finally:
        await family.aclose()
        await app.aclose()


def _reloading(watcher: ConfigWatcher) -> Callable[[], Awaitable[Reloaded]]:
    async def reload() -> Reloaded:
        change = await watcher.attempt()
        return Reloaded(change.live, change.restart)

    return reload
