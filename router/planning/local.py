"""LocalEngines: engines as processes of this machine, for demonstrations and single servers.

An actuator and a discovery at once: what it starts joins the pool when it answers ``/health``. A scale-in drains first:
the endpoint gets nothing new, and its process ends when its last request has, never sooner. After a failed start the
next of its kind waits, each time for twice as long.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from router.capacity.plan import Key, Plan
from router.planning.pools import DEFAULT, LABEL, Starting
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec
from router.ports import Clock

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_SETTLE_S = 2.0
"""A drained engine must have been idle for so long: a hand-off may still be on its way to it."""
_STOP_S = 10.0
_LONGEST_PAUSE_S = 300.0
_MOST_HEARD = 4096
_MOST_SAID = 300
_HOST = "127.0.0.1"

Answers = Callable[[str], Awaitable[bool]]
"""Whether the engine at that address is healthy."""


class _Failures(NamedTuple):
    """Of one kind of engine, one after the other."""

    times: int
    until: float
    """Before then none is started."""


class _Engine:
    def __init__(self, name: str, key: Key, pool: str, url: str, begun_at: float) -> None:
        self.name = name
        self.key = key
        self.pool = pool
        self.url = url
        self.begun_at = begun_at
        self.process: Process | None = None
        self.serving = False
        self.draining = False
        self.task: asyncio.Task[None] | None = None
        self.ear: asyncio.Task[None] | None = None
        self.heard = b""
        """The end of what it wrote to its standard error."""


class LocalEngines:
    """Implements `router.planning.actuator.Actuator` and `router.pool.discovery.Discovery`."""

    coming = "this router is starting one (capacity.actuator: local)"

    def __init__(
        self,
        command: Sequence[str],
        *,
        pool: Pool,
        answers: Answers,
        busy: Callable[[str], int],
        clock: Clock,
        startup_s: Callable[[str], float],
    ) -> None:
        """`command`: with ``{port}``, ``{role}`` and ``{variant}`` in it; `busy`: requests that an endpoint has;
        `startup_s`: of a variant, twice of which is overdue."""
        self._command = command
        self._pool = pool
        self._answers = answers
        self._busy = busy
        self._clock = clock
        self._startup_s = startup_s
        self._engines: dict[str, _Engine] = {}
        self._number = 0
        self._failures: dict[Key, _Failures] = {}
        self._changed = asyncio.Event()

    # Actuator

    def starting(self) -> Sequence[Starting]:
        return [
            Starting(key=engine.key, pool=engine.pool, overdue=self._overdue(engine))
            for engine in self._engines.values()
            if not engine.serving and not engine.draining
        ]

    async def apply(self, plan: Plan) -> None:
        its = [e for e in self._engines.values() if e.pool in (plan.pool, DEFAULT) and not e.draining]
        keys = {*plan.desired, *(engine.key for engine in its)}
        own = {key: [engine for engine in its if engine.key == key] for key in keys}
        for key in keys:
            # Engines that are not ours are counted in what there is, and are never touched.
            others = max(plan.present.get(key, 0) - sum(not self._overdue(e) for e in own[key]), 0)
            wanted = max(plan.desired.get(key, 0) - others, 0)
            for engine in own[key]:
                if self._overdue(engine) and not engine.serving:
                    self._failed(engine, "did not come up: it is ended")
                    self._retire(engine)
                    own[key] = [e for e in own[key] if e is not engine]
            for _ in range(wanted - len(own[key])):
                if key in self._failures and self._clock() < self._failures[key].until:
                    break
                await self._start(key, plan.pool)
            idle_first = sorted(own[key], key=lambda e: (e.serving, self._busy(e.name)))
            for engine in idle_first[: max(len(own[key]) - wanted, 0)]:
                self._retire(engine)

    async def aclose(self) -> None:
        tasks = [task for e in self._engines.values() for task in (e.task, e.ear) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in list(self._engines.values()):
            await _end(engine.process)
        self._engines.clear()

    # Discovery

    async def watch(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        while True:
            self._changed.clear()
            yield [
                EndpointSpec(url=e.url, role=e.key[0], name=e.name, labels={LABEL: e.key[1]})
                for e in self._engines.values()
                if e.serving
            ]
            await self._changed.wait()

    # An engine's life

    def _overdue(self, engine: _Engine) -> bool:
        return not engine.serving and self._clock() - engine.begun_at > 2 * self._startup_s(engine.key[1]) + 1.0

    async def _start(self, key: Key, pool: str) -> None:
        role, variant = key
        port = _free_port()
        self._number += 1
        engine = _Engine(f"{role.value}-{variant}-{self._number}", key, pool, f"http://{_HOST}:{port}", self._clock())
        places = {"port": str(port), "role": role.value, "variant": variant}
        arguments = [part.format_map(places) for part in self._command]
        # Its standard input is a leash: commands that watch it end when this process does.
        try:
            engine.process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=DEVNULL, stderr=PIPE)
        except OSError as error:
            self._failed(engine, f"cannot be started ({error.strerror or error}): mend capacity.local_command")
            return
        self._engines[engine.name] = engine
        engine.ear = asyncio.create_task(_hear(engine, engine.process), name=f"engine {engine.name} says")
        engine.task = asyncio.create_task(self._rise(engine, engine.process), name=f"engine {engine.name}")
        logger.info("engine %s starts at %s", engine.name, engine.url)

    async def _rise(self, engine: _Engine, process: Process) -> None:
        while not await self._answers(engine.url):
            if process.returncode is not None:
                if engine.ear is not None:
                    # Children of its own may hold the pipe open.
                    await asyncio.wait([engine.ear], timeout=_POLL_S)
                    await _silence(engine)
                self._failed(engine, f"ended while it started, with exit code {process.returncode}")
                del self._engines[engine.name]
                return
            await asyncio.sleep(_POLL_S)
        engine.serving = True
        self._failures.pop(engine.key, None)
        self._changed.set()
        logger.info("engine %s serves after %.1f s", engine.name, self._clock() - engine.begun_at)

    def _failed(self, engine: _Engine, what: str) -> None:
        """Tells of it, and lets the next start of its kind wait for twice as long as the last."""
        before = self._failures.get(engine.key, _Failures(0, 0.0)).times
        pause_s = min(2.0**before, _LONGEST_PAUSE_S)
        self._failures[engine.key] = _Failures(before + 1, self._clock() + pause_s)
        lines = engine.heard.decode("utf-8", "replace").strip().splitlines()
        said = f'; it said last: "{lines[-1].strip()[:_MOST_SAID]}"' if lines else ""
        logger.error(
            "engine %s (%s) %s%s; the next is started in %.0f s at the earliest",
            engine.name,
            _program(self._command),
            what,
            said,
            pause_s,
        )

    def _retire(self, engine: _Engine) -> None:
        engine.draining = True
        if engine.task is not None:
            engine.task.cancel()
        engine.task = asyncio.create_task(self._sink(engine), name=f"engine {engine.name}")

    async def _sink(self, engine: _Engine) -> None:
        if engine.serving:
            self._pool.drain(engine.name)
            idle_since = self._clock()
            while self._clock() - idle_since < _SETTLE_S:
                await asyncio.sleep(_POLL_S)
                if self._busy(engine.name):
                    idle_since = self._clock()
        engine.serving = False
        self._changed.set()
        await _end(engine.process)
        await _silence(engine)
        self._engines.pop(engine.name, None)
        logger.info("engine %s is gone", engine.name)


def _program(command: Sequence[str]) -> str:
    """The command up to its first option: what follows may be a secret."""
    return " ".join(itertools.takewhile(lambda word: not word.startswith("-"), command)) or command[0]


async def _hear(engine: _Engine, process: Process) -> None:
    """Keeps its standard error empty, and the end of what came."""
    assert process.stderr is not None
    while part := await process.stderr.read(_MOST_HEARD):
        engine.heard = (engine.heard + part)[-_MOST_HEARD:]


async def _silence(engine: _Engine) -> None:
    if engine.ear is not None:
        engine.ear.cancel()
        await asyncio.gather(engine.ear, return_exceptions=True)


async def _end(process: Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
