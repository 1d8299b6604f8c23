"""What routers with one Redis share."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kvindex.memory import MemoryIndex
from kvindex.redis_board import Load, RedisBoard
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from router.certificates import check_redis_files
from router.errors import ConfigError
from router.flowcontrol.key_limits import KeyLimits
from router.order_sharing import OrderSharing
from router.orders import Orders
from router.ports import Clock
from router.rate_sharing import RateSharing
from router.settings import Settings


@dataclass(frozen=True, slots=True)
class Shared:
    """What routers with one Redis share."""

    index: RedisIndex
    board: RedisBoard


def sharing(
    settings: Settings, memory: MemoryIndex, load: Callable[[], Load], note: Callable[[], bytes]
) -> Shared | None:
    """`memory`, this router's `load` and its `note` (of its queues), shared; None with the memory backend.

    Raises `ConfigError`.
    """
    if not settings.shares:
        return None
    namespace, router = settings.redis.namespace, secrets.token_hex(8)
    link = redis_link(settings)
    index = RedisIndex(
        memory,
        lambda: RedisStore(redis_link(settings), namespace=namespace),
        router=router,
        dispatched=lambda endpoint, keys: board.dispatched(endpoint, keys),
        routers=lambda: board.routers,
        dispatch_ttl_s=settings.index.speculative_ttl_s,
    )
    board = RedisBoard(
        link,
        router=router,
        namespace=namespace,
        load=load,
        note=note,
        on_dispatched=index.heard,
        history_s=settings.index.approximate_ttl_s,
    )
    return Shared(index, board)


def redis_link(settings: Settings) -> RedisLink:
    """A connection of its own. Raises `ConfigError` for an unusable address."""
    redis = settings.redis
    if redis.url is None:
        raise ConfigError("redis.url: index.backend is redis, which needs a server: give redis.url or --redis URL")
    check_redis_files(settings)
    try:
        return RedisLink(
            redis.url.get_secret_value(),
            budget_s=redis.command_timeout_s,
            ca_file=redis.ca_file,
            certificate=redis.client_cert_file,
            key=redis.client_key_file,
        )
    except ValueError as error:
        raise ConfigError(f"redis.url: {error}") from None


def order_sharing(settings: Settings, orders: Orders, shared: Shared | None, clock: Clock) -> OrderSharing | None:
    """None where there is no Redis. Raises `ConfigError`."""
    if shared is None:
        return None
    return OrderSharing(redis_link(settings), orders, namespace=settings.redis.namespace, clock=clock)


def rate_sharing(settings: Settings, limits: KeyLimits, shared: Shared | None) -> RateSharing | None:
    """None where there is no Redis. Raises `ConfigError`."""
    if shared is None:
        return None
    board = shared.board
    return RateSharing(redis_link(settings), limits, namespace=settings.redis.namespace, routers=lambda: board.routers)
