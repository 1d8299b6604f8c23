"""Discovery: where the pool's endpoints come from, as a port, and the feeds that carry it into the pool.

Kubernetes or a registry is one more class with `watch`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from router.observability.supervisor import SupervisedTask, Supervisor
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec


class Discovery(Protocol):
    def watch(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        """All endpoints there are now, again after every change. Never an endpoint twice in one list.

        A source that cannot be reached says nothing: the last list stays in force.
        """
        ...


class StaticDiscovery:
    """A fixed list."""

    def __init__(self, specs: Iterable[EndpointSpec]) -> None:
        self._specs = tuple(specs)

    async def watch(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        yield self._specs


class Feeds:
    """Named discoveries, each followed by a supervised task of its own."""

    def __init__(self, pool: Pool, supervisor: Supervisor) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self._running: dict[str, SupervisedTask] = {}

    def follow(self, discoveries: Mapping[str, Discovery]) -> None:
        """Starts what is new and ends what is gone, whose endpoints leave the pool. A name that stays keeps the
        discovery that runs under it: put into the name whatever makes it another."""
        for name in [name for name in self._running if name not in discoveries]:
            self._running.pop(name).cancel()
            self._pool.set_endpoints((), source=name)
        for name, discovery in discoveries.items():
            if name not in self._running:
                self._running[name] = self._start(name, discovery)

    async def aclose(self) -> None:
        """Ends all feeds; the pool keeps its endpoints."""
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.wait()

    def _start(self, name: str, discovery: Discovery) -> SupervisedTask:
        async def carry() -> None:
            async for specs in discovery.watch():
                self._pool.set_endpoints(specs, source=name)

        return self._supervisor.spawn(f"discovery {name}", carry)
