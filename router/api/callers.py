"""Who asks, and for what: a request's `Caller` out of its key, the peer it came from and what it says itself. PURE.

What a request says of tenant, objective, SLOs and priority counts by right: of the peer (`server.trusted_peers`), of
the key, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from router.api.keys import Key
from router.core import Caller
from router.wire.headers import FAIRNESS, OBJECTIVE, STEERING

_PEERS_REMEMBERED = 1024
_NAME = re.compile(r"[!-~]{1,128}")
"""Tenants and objectives become labels and log words: short, printable, in one piece."""

_NOTHING: frozenset[bytes] = frozenset()
_OBJECTIVES = frozenset(name.encode() for name in OBJECTIVE)


class TrustedPeers:
    """The networks whose word counts."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises ValueError for what is no address and no CIDR."""
        self._networks = tuple(ip_network(network) for network in networks)
        # A gateway's few addresses come with every request.
        self._holds = lru_cache(maxsize=_PEERS_REMEMBERED)(self._look_up)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def hold(self, peer: str) -> bool:
        """Whether this address, as the connection has it, is one of them."""
        return bool(self._networks) and self._holds(peer)

    def _look_up(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            # How a listener on :: sees its IPv4 peers.
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def steering_of(key: Key, trusted: bool) -> frozenset[bytes]:
    """Header fields by which this caller may steer (`router.wire.headers.request_headers`)."""
    if trusted:
        return STEERING
    return _OBJECTIVES if key.objectives else _NOTHING


def caller(key: Key, trusted: bool, said: Mapping[str, str], priority: int | None) -> Caller:
    """`said`: the steering fields that were let through; `priority`: the body's, in vLLM's order (lower is sooner)."""
    objective = _first(said, OBJECTIVE) if said else None
    if key.objectives and not trusted and objective not in key.objectives:
        objective = key.objectives[0]
    tenant = _first(said, FAIRNESS) if said else None
    importance = None if priority is None else allowed_priority(key, trusted, -priority)
    return Caller(key.tenant if tenant is None else tenant, objective, importance, key.name or None)


def allowed_priority(key: Key, trusted: bool, asked: int) -> int | None:
    """The importance that counts of the one asked for; None: this caller has no right to any."""
    if trusted:
        return asked
    return None if key.max_priority is None else min(asked, key.max_priority)


def _first(said: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = said.get(name)
        if value is not None and _NAME.fullmatch(value):
            return value
    return None
