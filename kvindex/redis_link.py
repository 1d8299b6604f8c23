"""One caller's connection to Redis or Valkey: standalone, behind Sentinel, or a cluster; plain or TLS.

Every call has one time budget, from the first byte of a connection to the last byte of the answer. Whatever ends a
call before its answer (time-out, error, cancellation) closes the connections it may have used, so that an answer still
under way is never read as the answer to a later command. Scripts are sent whole: there is no cache of them to lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from kvindex.redis_address import Kind, parse_address
from kvindex.redis_trouble import StoreUnavailable, reason

_T = TypeVar("_T")


class RedisLink:
    """For one task at a time. `budget_s` bounds each call. Raises ValueError for an unusable address.

    The files are PEM and can be read: `ca_file`, what a TLS server's certificate is checked against instead of the
    system's; `certificate` with `key`, what the server is shown.
    """

    def __init__(
        self,
        url: str,
        *,
        budget_s: float = 0.5,
        ca_file: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        self._address = parse_address(url)
        self._budget_s = budget_s
        self._secured: dict[str, Any] = {}
        if self._address.tls:
            self._secured = {"ssl": True, "ssl_ca_certs": ca_file, "ssl_certfile": certificate, "ssl_keyfile": key}
        self._client: Any = None
        self._sentinels: list[Any] = []

    @property
    def kind(self) -> Kind:
        return self._address.kind

    async def call(self, ask: Callable[[Any], Awaitable[_T]]) -> _T:
        """`ask` with a client, within the budget. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._budget_s):
                if self._client is None:
                    self._open()
                return await ask(self._client)
        except (RedisError, RedisClusterException, OSError) as error:
            # TimeoutError is an OSError.
            await self.aclose()
            raise StoreUnavailable(reason(error, self._budget_s)) from None
        except BaseException:
            await self.aclose()
            raise

    async def eval(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """Keys must share one slot. Raises StoreUnavailable."""
        return await self.call(lambda client: client.eval(script, len(keys), *keys, *arguments))

    async def aclose(self) -> None:
        """Closes every connection; the next call makes new ones."""
        clients = [client for client in (self._client, *self._sentinels) if client is not None]
        self._client, self._sentinels = None, []
        for client in clients:
            await client.aclose()
            nodes = getattr(client, "nodes_manager", None)
            if nodes is not None:
                # A cluster's client that was interrupted while it looked for its nodes takes itself for closed.
                await nodes.aclose()
                await nodes.aclose("startup_nodes")

    def _open(self) -> None:
        address = self._address
        common: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": self._budget_s,
            "socket_timeout": self._budget_s,
            # None of the library's own retries: an answer must not cost more than the budget.
            "retry": Retry(NoBackoff(), 0),
        }
        secured = self._secured
        credentials: dict[str, Any] = {"username": address.username, "password": address.password}
        if address.kind == "cluster":
            self._client = RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
                require_full_coverage=False,
                **common,
                **secured,
                **credentials,
            )
            return
        common |= {"health_check_interval": 0, "max_connections": 1}
        if address.kind == "unix":
            self._client = redis.Redis(unix_socket_path=address.path, db=address.db, **common, **credentials)
        elif address.kind == "sentinel":
            # One silent sentinel must leave time to ask the next.
            share = self._budget_s / (len(address.hosts) + 1)
            asking = common | {"socket_connect_timeout": share, "socket_timeout": share}
            asking |= {"username": address.sentinel_username, "password": address.sentinel_password}
            sentinel: Any = Sentinel
            manager = sentinel(list(address.hosts), sentinel_kwargs=asking | secured)
            self._sentinels = list(manager.sentinels)
            self._client = manager.master_for(address.service, db=address.db, **common, **secured, **credentials)
        else:
            host, port = address.hosts[0]
            self._client = redis.Redis(host=host, port=port, db=address.db, **common, **secured, **credentials)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels until it is done: a cancellation that meets an expiring time-out can be taken for it and swallowed."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
