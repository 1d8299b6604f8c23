"""The parent of several workers: one listener, bound here and shared; signals, restarts, what all of them say together.

It serves no request itself. A worker that ends is started again, after a growing pause; one that finds its
configuration wrong at the first start ends everything. Readiness and ``/metrics`` are asked of the parent by whichever
worker was asked, and it asks all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from router.api.admin import Obedience, Order
from router.errors import ConfigError
from router.listening import address, listeners
from router.observability.logs import configure
from router.observability.merge import counts, merge
from router.orders import InForce
from router.reload import SettingsLoader
from router.settings import Settings
from router.workers.embedded import EmbeddedValkey
from router.workers.plan import BAD_INPUT, PARENT, Plan, Workers, socket_of
from router.workers.talk import Answerer, ask

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 10.0
_HEALTHY_S = 10.0
_EMBEDDED_POLL_S = 0.5


def serve_many(settings: Settings, loader: SettingsLoader) -> int:
    """Serves until told to end. Returns the exit code. Raises `ConfigError`."""
    configure(settings.log.level, settings.log.format)
    with (
        listeners(settings) as (listener, admin_listener),
        tempfile.TemporaryDirectory(prefix="kvrouter-") as folder,
    ):
        embedded, flags = _shared(settings, loader, Path(folder))
        try:
            parent = Parent(
                *(listener, admin_listener, Path(folder), settings.server.workers, loader.config, flags),
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


class _Worker:
    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.ready_once = False

    def send(self, number: int) -> None:
        if self.running and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None


class Parent:
    def __init__(
        self,
        listener: socket.socket,
        admin_listener: socket.socket | None,
        folder: Path,
        workers: int,
        config: Path | None,
        flags: Mapping[str, Any],
        *,
        embedded: EmbeddedValkey | None = None,
    ) -> None:
        self._listener = listener
        self._admin_listener = admin_listener
        self._orders = InForce()
        self._folder = folder
        self._config = config
        self._flags = flags
        self._embedded = embedded
        self._workers = [_Worker(number) for number in range(workers)]
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
        valkey = asyncio.create_task(self._keep_embedded(), name="embedded valkey")
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(self._keep(worker))
        finally:
            valkey.cancel()
            await asyncio.gather(valkey, return_exceptions=True)
            await answerer.aclose()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
        return self._exit_code

    def _end(self) -> None:
        """A second time: what still runs is cut at once, as the workers understand a second signal."""
        self._ending.set()
        self._tell(signal.SIGTERM)
        # Theirs stay open until each has drained; then nobody must be left waiting in the queue of a listener.
        self._listener.close()
        if self._admin_listener is not None:
            self._admin_listener.close()

    def _tell(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)

    # Workers

    async def _keep(self, worker: _Worker) -> None:
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

    async def _run_once(self, worker: _Worker) -> int:
        plan = Plan(
            number=worker.number,
            folder=str(self._folder),
            listener=self._listener.fileno(),
            admin_listener=None if self._admin_listener is None else self._admin_listener.fileno(),
            config=None if self._config is None else str(self._config),
            flags=dict(self._flags),
        )
        process = worker.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "router.workers.child"),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[number for number in (plan.listener, plan.admin_listener) if number is not None],
            # Ctrl-C reaches the parent alone, which tells them.
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            # On standard input: flags may hold keys, and arguments can be read by anyone on the host. It stays open:
            # its end tells the worker that its parent is gone.
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            if self._ending.is_set():
                worker.send(signal.SIGTERM)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            process.stdin.close()

    async def _part_with(self, worker: _Worker) -> None:
        """What it had counted by the last time it was asked stays in the sums."""
        page = self._pages.pop(worker.number, None)
        if page is not None:
            self._departed = counts([page for page in (self._departed, page) if page])

    async def _keep_embedded(self) -> None:
        while self._embedded is not None:
            await asyncio.sleep(_EMBEDDED_POLL_S)
            if not self._embedded.running and not self._ending.is_set():
                logger.error("the embedded Valkey ended and is started again")
                try:
                    await asyncio.to_thread(self._embedded.start)
                except ConfigError as error:
                    logger.error("%s", error)

    # What all of them say

    async def _metrics(self, _: str) -> bytes:
        running = [worker for worker in self._workers if worker.process is not None]
        answers = await asyncio.gather(*(ask(socket_of(self._folder, worker.number), "metrics") for worker in running))
        for worker, page in zip(running, answers, strict=True):
            if page:
                self._pages[worker.number] = page
        return merge(list(self._pages.values()), [self._departed] if self._departed else [])

    async def _readiness(self, _: str) -> bytes:
        running = sum(worker.running for worker in self._workers)
        return msgspec.json.encode(Workers(running, len(self._workers), self._ending.is_set()))

    async def _note_ready(self, _: str) -> bytes:
        for worker in self._workers:
            worker.ready_once = worker.ready_once or socket_of(self._folder, worker.number).exists()
        return b"ok"

    # What all of them are told

    async def _order(self, told: str) -> bytes:
        """Kept for workers that start later, and passed on to those that run."""
        self._orders = self._orders.after(msgspec.json.decode(told, type=Order))
        running = [
            worker for worker in self._workers if worker.running and socket_of(self._folder, worker.number).exists()
        ]
        answers = await asyncio.gather(
            *(ask(socket_of(self._folder, worker.number), f"order {told}") for worker in running)
        )
        return msgspec.json.encode(Obedience(sum(answer == b"ok" for answer in answers), len(running)))

    async def _in_force(self, _: str) -> bytes:
        return msgspec.json.encode(self._orders)

    async def _reload(self, _: str) -> bytes:
        self._tell(signal.SIGHUP)
        return b"ok"


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
