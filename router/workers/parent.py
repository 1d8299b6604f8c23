"""The parent of several workers: one listener, bound here and shared; signals, restarts, what all of them say together.

It serves no request itself, but says 503 where no worker is left to. A worker that ends is started again, after a
growing pause, and one that does not answer any more is ended; one that finds its configuration wrong at the first start
ends everything. Readiness and ``/metrics`` are asked of the parent by whichever
worker was asked, and it asks all.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from router.api.admin import Obedience, Order
from router.certificates import Certificates
from router.errors import ConfigError
from router.listening import address, listeners
from router.observability.logs import configure
from router.observability.merge import counts, merge
from router.orders import InForce
from router.reload import SettingsLoader
from router.settings import Settings
from router.workers.embedded import EmbeddedValkey
from router.workers.folder import meeting_place
from router.workers.plan import BAD_INPUT, PARENT, Plan, Workers, socket_of
from router.workers.standin import StandIn
from router.workers.talk import Answerer
from router.workers.worker import Worker, states_page

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 10.0
_HEALTHY_S = 10.0
_LOOK_S = 1.0
_ALONE_S = 5.0
"""How long no worker may take connections before each is told so: one that is started again is there sooner."""


def serve_many(settings: Settings, loader: SettingsLoader) -> int:
    """Serves until told to end. Returns the exit code. Raises `ConfigError`."""
    configure(settings.log.level, settings.log.format)
    certificates = Certificates(settings)
    if settings.log.requests is not None:
        logger.warning(
            "log.requests: each of the %d workers numbers blocks on its own, so that a replay finds fewer prefixes "
            "shared than there are: record with one worker",
            settings.server.workers,
        )
    with listeners(settings) as (listener, admin_listener), meeting_place() as folder:
        embedded, flags = _shared(settings, loader, folder)
        try:
            parent = Parent(
                *(listener, admin_listener, folder, loader.config, flags),
                workers=settings.server.workers,
                worker_timeout_s=settings.server.worker_timeout_s,
                certificates=certificates,
                embedded=embedded,
            )
            return asyncio.run(parent.run())
        finally:
            if embedded is not None:
                embedded.stop()


def _shared(settings: Settings, loader: SettingsLoader, folder: Path) -> tuple[EmbeddedValkey | None, dict[str, Any]]:
    """What the workers share, started if it must be, and the flags that tell them."""
    flags = dict(loader.flags) | {"index.backend": "redis"}
    if settings.redis.url is not None:
        return None, flags
    embedded = EmbeddedValkey(folder)
    embedded.start()
    logger.info("no redis.url: %d workers share an embedded Valkey", settings.server.workers)
    return embedded, flags | {"redis.url": embedded.url}


class Parent:
    def __init__(
        self,
        listener: socket.socket,
        admin_listener: socket.socket | None,
        folder: Path,
        config: Path | None,
        flags: Mapping[str, Any],
        *,
        workers: int,
        worker_timeout_s: float,
        certificates: Certificates,
        embedded: EmbeddedValkey | None = None,
    ) -> None:
        self._listener = listener
        self._admin_listener = admin_listener
        self._orders = InForce()
        self._folder = folder
        self._config = config
        self._flags = flags
        self._embedded = embedded
        self._workers = [
            Worker(number, socket_of(folder, number), limit_s=worker_timeout_s) for number in range(workers)
        ]
        self._worker_timeout_s = worker_timeout_s
        self._certificates = certificates
        bound = [listener] if admin_listener is None else [listener, admin_listener]
        self._stand_in = StandIn(bound, certificates.to_clients)
        self._pages: dict[int, bytes] = {}
        self._departed = b""
        self._ending = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Until told to end and all workers have ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGINT, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP)
        answers = {
            "metrics": self._metrics,
            "workers": self._readiness,
            "ready": self._note_ready,
            "order": self._order,
            "orders": self._in_force,
            "reload": self._reload,
        }
        answerer = Answerer(self._folder / PARENT, answers)
        await answerer.start()
        logger.info("%d workers on %s", len(self._workers), address(self._listener))
        beside = [asyncio.create_task(self._keep_answered(), name="stand-in")]
        if self._embedded is not None:
            keeping = self._embedded.keep(self._ending, self._worker_timeout_s)
            beside.append(asyncio.create_task(keeping, name="embedded valkey"))
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(self._keep(worker))
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._stand_in.stop()
            await answerer.aclose()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
        return self._exit_code

    def _end(self) -> None:
        """A second time: what still runs is cut at once, as the workers understand a second signal."""
        self._ending.set()
        self._tell(signal.SIGTERM)
        self._stand_in.stop()
        # Theirs stay open until each has drained; then nobody must be left waiting in the queue of a listener.
        self._listener.close()
        if self._admin_listener is not None:
            self._admin_listener.close()

    def _tell(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)

    # Workers

    async def _keep(self, worker: Worker) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            started = loop.time()
            code = await self._run_once(worker)
            await self._part_with(worker)
            if self._ending.is_set():
                return
            if code == BAD_INPUT and not worker.ready_once:
                # It has said why.
                self._exit_code = BAD_INPUT
                self._end()
                return
            pause_s = _FIRST_PAUSE_S if loop.time() - started > _HEALTHY_S else min(_MOST_PAUSE_S, 2 * pause_s)
            logger.error("worker %d ended (%s), starts again in %.1f s", worker.number, _how(code), pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()
            except TimeoutError:
                continue

    async def _run_once(self, worker: Worker) -> int:
        plan = Plan(
            number=worker.number,
            folder=str(self._folder),
            listener=self._listener.fileno(),
            admin_listener=None if self._admin_listener is None else self._admin_listener.fileno(),
            config=None if self._config is None else str(self._config),
            flags=dict(self._flags),
        )
        return await worker.run(plan, self._ending)

    async def _part_with(self, worker: Worker) -> None:
        """What it had counted by the last time it was asked stays in the sums."""
        page = self._pages.pop(worker.number, None)
        if page is not None:
            self._departed = counts([page for page in (self._departed, page) if page])

    async def _keep_answered(self) -> None:
        """Nobody is left without an answer for long: where no worker takes connections, each is told so."""
        alone_s = 0.0
        while not self._ending.is_set():
            await asyncio.sleep(_LOOK_S)
            if any(worker.accepts for worker in self._workers):
                alone_s = 0.0
                continue
            alone_s += _LOOK_S
            if alone_s < _ALONE_S or self._stand_in.serves or self._ending.is_set():
                continue
            began = any(worker.ready_once for worker in self._workers)
            level = logging.WARNING if began else logging.INFO
            logger.log(level, "no worker serves%s: requests are answered 503 until one does", "" if began else " yet")
            try:
                self._certificates.renew()
            except ConfigError as error:
                logger.error("%s", error)
            try:
                await self._stand_in.start()
            except OSError as error:
                logger.error("nobody can be told: %s", error)

    # What all of them say

    async def _metrics(self, _: str) -> bytes:
        states = [worker.state for worker in self._workers]
        asked = [worker for worker in self._workers if worker.state in ("starting", "serving")]
        for worker, page in zip(asked, await asyncio.gather(*(worker.ask("metrics") for worker in asked)), strict=True):
            if page:
                self._pages[worker.number] = page
        numbers = {worker.number for worker in asked}
        gone = [page for number, page in self._pages.items() if number not in numbers]
        now = [page for number, page in self._pages.items() if number in numbers]
        return merge(now, [page for page in (self._departed, *gone) if page]) + states_page(states)

    async def _readiness(self, _: str) -> bytes:
        running = sum(worker.state in ("starting", "serving") for worker in self._workers)
        return msgspec.json.encode(Workers(running, len(self._workers), self._ending.is_set()))

    async def _note_ready(self, number: str) -> bytes:
        for worker in self._workers:
            if str(worker.number) == number:
                worker.note_ready()
                if self._stand_in.serves:
                    logger.info("worker %s serves", number)
                self._stand_in.stop()
        return b"ok"

    # What all of them are told

    async def _order(self, told: str) -> bytes:
        """Kept for workers that start later, and passed on to those that run."""
        self._orders = self._orders.after(msgspec.json.decode(told, type=Order))
        running = [
            worker for worker in self._workers if worker.running and socket_of(self._folder, worker.number).exists()
        ]
        answers = await asyncio.gather(*(worker.ask(f"order {told}") for worker in running))
        return msgspec.json.encode(Obedience(sum(answer == b"ok" for answer in answers), len(running)))

    async def _in_force(self, _: str) -> bytes:
        return msgspec.json.encode(self._orders)

    async def _reload(self, _: str) -> bytes:
        self._tell(signal.SIGHUP)
        return b"ok"


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
