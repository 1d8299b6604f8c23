"""Orders: what an administrator has asked for, in force until it is taken back.

An endpoint that an order took out of service stays so when it leaves the pool and comes back, as with a DNS answer that
flickers. Nothing of it is written down here: a router that starts anew has the orders that its siblings on the same
host and the routers over the same Redis (`router.order_sharing`) tell it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from router.api.admin import Obedience, Order, Reloaded
from router.api.lifecycle import Lifecycle
from router.errors import ConfigError, InvalidRequest
from router.pool.observers import PoolObserver
from router.pool.pool import Pool

logger = logging.getLogger(__name__)

_MOST = 10_000
"""Endpoints remembered as drained. More than any pool has: an order is taken only for one that is in it."""


class InForce(msgspec.Struct, frozen=True):
    """All orders that are in force."""

    endpoints: tuple[str, ...] = ()
    router: bool = False
    """The router itself is out of service."""

    def after(self, order: Order) -> InForce:
        drained = order.do == "drain"
        if order.endpoint is None:
            return InForce(self.endpoints, drained)
        others = tuple(name for name in self.endpoints if name != order.endpoint)
        return InForce((*others, order.endpoint)[-_MOST:] if drained else others, self.router)


class Told(Protocol):
    """Hears of every order that is obeyed here."""

    def __call__(self, order: Order, *, own: bool) -> None:
        """`own`: it was given to this process; a sibling's otherwise."""
        ...


class Others(Protocol):
    """Routers elsewhere that share orders with this one."""

    async def exchange(self) -> bool:
        """Tells them what was ordered here. False: they cannot be told now, and will be later."""
        ...


class Colleagues(Protocol):
    """The other workers on this host."""

    async def order(self, order: Order) -> Obedience:
        """Has all workers follow it, this one included."""
        ...

    async def reload(self) -> None: ...


class Orders(PoolObserver):
    """Carries orders out on this process's pool and lifecycle."""

    def __init__(self, pool: Pool, lifecycle: Lifecycle) -> None:
        self._pool = pool
        self._lifecycle = lifecycle
        self._told: Told | None = None
        self.in_force = InForce()

    def tell(self, told: Told) -> None:
        """`told` hears of every order from now on."""
        self._told = told

    def in_pool(self, endpoint: str) -> bool:
        return self._pool.upstream_of(endpoint) is not None

    def obey(self, order: Order, *, known: bool = False) -> Order | None:
        """The order with the address that it is about; None: no such endpoint. `known`: a sibling has it."""
        name = order.endpoint
        if name is None:
            self._lifecycle.out_of_service = order.do == "drain"
        else:
            here = self._pool.upstream_of(name)
            # Of an endpoint that has left, an order may still be taken back.
            if here is None and not known and (order.do == "drain" or name not in self.in_force.endpoints):
                return None
            name = here or name
            self._pool.drain(name, draining=order.do == "drain")
            order = Order(order.do, name)
        self.in_force = self.in_force.after(order)
        if self._told is not None:
            self._told(order, own=not known)
        return order

    def restore(self, orders: InForce) -> None:
        """What others obey already takes the place of what was in force here."""
        for name in {*self.in_force.endpoints} - {*orders.endpoints}:
            self._pool.drain(name, draining=False)
        for name in orders.endpoints:
            self._pool.drain(name)
        self._lifecycle.out_of_service = orders.router
        self.in_force = orders

    def upstream_added(self, upstream_id: str) -> None:
        if upstream_id in self.in_force.endpoints:
            self._pool.drain(upstream_id)


class Administrator:
    """Implements `router.api.admin.Administration`."""

    def __init__(
        self,
        orders: Orders,
        lifecycle: Lifecycle,
        describe: Callable[[], list[dict[str, Any]]],
        colleagues: Colleagues | None = None,
        others: Others | None = None,
    ) -> None:
        self._orders = orders
        self._lifecycle = lifecycle
        self._describe = describe
        self._colleagues = colleagues
        self._others = others
        self._reload: Callable[[], Awaitable[Reloaded]] | None = None

    def reloads_by(self, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        """`reload` loads the configuration again; it raises `ConfigError`."""
        self._reload = reload

    async def order(self, order: Order) -> Obedience | None:
        obeyed = self._orders.obey(order)
        if obeyed is None:
            return None
        obedience = Obedience(1, 1) if self._colleagues is None else await self._colleagues.order(obeyed)
        if self._others is None or obeyed.endpoint is None:
            return obedience
        return obedience._replace(told_others=await self._others.exchange())

    async def reload(self) -> Reloaded:
        if self._reload is None:
            raise InvalidRequest("This router was started without a configuration that could be loaded again.")
        try:
            reloaded = await self._reload()
        except ConfigError as error:
            raise InvalidRequest(f"Not reloaded, the old configuration stays in force: {error}") from None
        if self._colleagues is not None:
            await self._colleagues.reload()
        return reloaded

    def endpoints(self) -> list[dict[str, Any]]:
        shown = ("id", "url", "role", "rank", "health", "reason", "models", "inflight")
        return [{key: entry[key] for key in shown if key in entry} for entry in self._describe()]

    def status(self) -> dict[str, Any]:
        return {
            "router": {"out_of_service": self._lifecycle.out_of_service, "requests": self._lifecycle.active},
            "drained": list(self._orders.in_force.endpoints),
        }
