"""Listening: the sockets that clients and administrators reach, and one sentence about what stands in their way."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import NamedTuple

from router.errors import ConfigError
from router.settings import Settings
from router.wire.hosts import in_url, is_every_address

_BACKLOG = 2048

_OTHER_HOST = "give another {host}, like 127.0.0.1 or 0.0.0.0"

_IN_THE_WAY = {
    errno.EADDRINUSE: ("address already in use", "stop what listens there, or give another {port}"),
    errno.EADDRNOTAVAIL: ("not an address of this machine", _OTHER_HOST),
    errno.EAFNOSUPPORT: ("this machine has no IPv6", _OTHER_HOST),
    errno.EACCES: ("permission denied", "give a {port} above 1023"),
    errno.EINVAL: ("not an address to listen on", _OTHER_HOST),
    socket.EAI_NONAME: ("no such host", _OTHER_HOST),
    socket.EAI_AGAIN: ("the name cannot be resolved now", _OTHER_HOST),
}
"""What stands in the way of a listening socket, by error number, and the mend."""


class _Keys(NamedTuple):
    """What a listener's address is called in the configuration, and where it is best given."""

    host: str
    port: str
    host_flag: str
    port_flag: str


_OF_CLIENTS = _Keys("server.host", "server.port", "--host", "--port")
_OF_ADMINISTRATION = _Keys(*("server.admin_host", "server.admin_port") * 2)


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket; on ``::`` for IPv4 too, where the system can. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and is_every_address(host) and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


@contextlib.contextmanager
def listeners(settings: Settings) -> Iterator[tuple[socket.socket, socket.socket | None]]:
    """The clients' listener and administration's own, if there is to be one. Raises `ConfigError`."""
    server = settings.server
    with contextlib.ExitStack() as opened:
        clients = opened.enter_context(_listener(server.host, server.port, _OF_CLIENTS))
        admin = None
        if server.admin_port is not None:
            admin = opened.enter_context(_listener(server.admin_host, server.admin_port, _OF_ADMINISTRATION))
        yield clients, admin


def address(listener: socket.socket) -> str:
    """``host:port`` as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"{in_url(host)}:{port}"


def _listener(host: str, port: int, keys: _Keys) -> contextlib.closing[socket.socket]:
    try:
        return contextlib.closing(listen(host, port))
    except OSError as error:
        known = _IN_THE_WAY.get(error.errno or 0)
        if known is None and isinstance(error, socket.gaierror):
            # Found, but of another kind than a listener needs, and what else resolvers say.
            known = _IN_THE_WAY[socket.EAI_NONAME]
        if known is None:
            raise
        why, mend = known
        key = keys.host if mend is _OTHER_HOST else keys.port
        told = mend.format(host=keys.host_flag, port=keys.port_flag)
        raise ConfigError(f"{key}: cannot listen on {in_url(host)}:{port} ({why}): {told}") from error
