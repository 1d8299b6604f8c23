"""Gate: who may look inside the router and administer it, on one listener. PURE.

admin keys   the listener is                   who gets in
some         any                               whoever has one of them
none         the clients' too, on loopback     whoever may use the router: with an API key, where one is asked for
none         administration's own, loopback    everybody on this host
none         any other                         nobody

Without admin keys the listener's address is all that tells who asks. So a request that says it came through a proxy is
refused: a proxy on this host brings the whole world to a loopback address. And where no key is asked for at all, a
browser on this host is kept from being used by a page that it shows: such requests name a page's origin, or a host that
is no loopback address (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

from router.api.keys import NOBODY, Key, KeyRing
from router.errors import Forbidden, Unauthorized
from router.wire.hosts import is_loopback


class Surface(Enum):
    """Which paths a listener serves."""

    ALL = "all"
    CLIENTS = "clients"
    """Administration has a listener of its own."""
    ADMINISTRATION = "administration"


class Gate:
    """`admins` may be replaced at run time."""

    def __init__(self, admins: KeyRing, clients: Callable[[], KeyRing], *, loopback: bool, surface: Surface) -> None:
        """`clients`: the ring in force for the inference paths; `loopback`: how the listener is bound."""
        self.admins = admins
        self._clients = clients
        self._loopback = loopback
        self._surface = surface

    def admit(self, headers: Collection[tuple[bytes, bytes]]) -> Key:
        """Who it is. Raises `Unauthorized` and `Forbidden`."""
        if not self.admins.open:
            try:
                return self.admins.authorize(headers)
            except Unauthorized:
                raise Unauthorized(
                    "This needs one of the router's admin keys; send it as 'Authorization: Bearer KEY'."
                ) from None
        if not self._loopback:
            raise Forbidden(
                "This needs an admin key, and the router has none: give it one with server.admin_keys, or bind it to a "
                "loopback address."
            )
        _refuse_proxied(headers)
        clients = self._clients()
        if self._surface is not Surface.ADMINISTRATION and not clients.open:
            return clients.authorize(headers)
        _refuse_pages(headers)
        return NOBODY


_OF_PROXIES = frozenset((b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"))


def _refuse_proxied(headers: Collection[tuple[bytes, bytes]]) -> None:
    if any(name in _OF_PROXIES for name, _ in headers):
        raise Forbidden("Through a proxy this needs an admin key: give the router one with server.admin_keys.")


def _refuse_pages(headers: Collection[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"origin":
            raise Forbidden("A web page may not ask for this without an admin key (server.admin_keys).")
        if name == b"host" and not _names_loopback(value.decode("latin-1")):
            raise Forbidden("Without an admin key (server.admin_keys) this is answered at localhost or 127.0.0.1 only.")


def _names_loopback(host: str) -> bool:
    """``host[:port]`` or ``[v6][:port]``."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower())


def audit_name(key: Key) -> str:
    """Who it was, for the audit log."""
    return key.name or "nobody (no key is asked for on loopback)"
