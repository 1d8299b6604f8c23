"""A whole router in this process, on a free port, over given engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from loadtest.simulator import TOKENIZER_PATH, RunningEngine
from router.app import App
from router.assembly import clients
from router.listening import listen
from router.process import Process
from router.settings import Settings, load


class RunningRouter:
    def __init__(self, app: App, url: str, process: Process, admin_url: str = "") -> None:
        """`admin_url`: of administration's own listener, if it has one."""
        self.app = app
        self.admin_url = admin_url
        self.url = url
        self.process = process

    def endpoint_of(self, engine: RunningEngine) -> str:
        """The endpoint id that the router gives an engine."""
        return engine.url.removeprefix("http://")


def endpoints(
    both: Sequence[RunningEngine] = (),
    prefill: Sequence[RunningEngine] = (),
    decode: Sequence[RunningEngine] = (),
) -> list[dict[str, str]]:
    """The ``endpoints`` setting."""
    roles = (("both", both), ("prefill", prefill), ("decode", decode))
    return [{"url": engine.url, "role": role} for role, engines in roles for engine in engines]


@asynccontextmanager
async def running_router(specs: Sequence[dict[str, Any]], **flags: Any) -> AsyncIterator[RunningRouter]:
    """`flags`: dotted settings, with ``__`` for the dot."""
    chosen: dict[str, Any] = {"tokenization.default": str(TOKENIZER_PATH), "server.access_log": False}
    chosen |= {name.replace("__", "."): value for name, value in flags.items()}
    settings = load(None, environ={}, flags={"endpoints": list(specs), **chosen})
    async with running_app(settings) as router:
        yield router


@asynccontextmanager
async def running_app(settings: Settings) -> AsyncIterator[RunningRouter]:
    """The router of these settings, but on a free port and ending quickly."""
    app = App(settings)
    listener = listen("127.0.0.1", 0)
    admin_listener = None if settings.server.admin_port is None else listen("127.0.0.1", 0)
    grace_s = min(settings.server.shutdown_grace_s, 5.0)
    process = Process(
        app.asgi,
        app.lifecycle,
        listener,
        settle_s=0.0,
        grace_s=grace_s,
        limits=clients.client_limits(settings),
        tls=app.certificates.to_clients,
        admin=None if admin_listener is None else (app.admin_asgi, admin_listener),
    )
    try:
        await app.start()
        serving = asyncio.create_task(process.run())
        try:
            scheme = "http" if app.certificates.to_clients is None else "https"
            urls = [
                "" if bound is None else f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
                for bound in (listener, admin_listener)
            ]
            yield RunningRouter(app, urls[0], process, urls[1])
        finally:
            process.stop()
            await serving
    finally:
        await app.aclose()
        listener.close()
        if admin_listener is not None:
            admin_listener.close()


@asynccontextmanager
async def client_of(router: RunningRouter) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=router.url, timeout=60, limits=limits, trust_env=False, verify=False
    ) as client:
        yield client
