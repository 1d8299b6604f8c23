"""Addresses of a Redis or Valkey: what a URL says. PURE.

Each form with ``rediss`` in place of ``redis`` for TLS::

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/db][?sentinel_user=..&sentinel_password=..]
    redis+cluster://[user:password@]host[:port],host[:port]
    unix://[user:password@]/path[?db=..]
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qs, unquote

import msgspec

Kind = Literal["standalone", "sentinel", "cluster", "unix"]
_KINDS: dict[str, tuple[Kind, int]] = {
    "redis": ("standalone", 6379),
    "redis+sentinel": ("sentinel", 26379),
    "redis+cluster": ("cluster", 6379),
}
_FORMS = (
    "redis://host:port/db, redis+sentinel://host,host/service, redis+cluster://host,host (rediss... for TLS) "
    "or unix://path"
)


_ENCODE = "in a user or password write special characters percent-encoded, as %23 for #, %3F for ?, %2F for /"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed address. Its repr may hold a password: for no log."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    tls: bool = False
    username: str | None = None
    password: str | None = None
    db: int = 0
    service: str = ""
    """Name of the primary that sentinels watch."""
    path: str = ""
    """Of a unix socket."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None


def parse_address(url: str) -> Address:
    """Raises ValueError with the mend, never with the URL."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"has no scheme: write {_FORMS}")
    if "#" in rest:
        raise ValueError(f"has a #: {_ENCODE}")
    place, _, query = rest.partition("?")
    netloc, slash, path = place.partition("/")
    userinfo, _, hosts = netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    if "@" in query or "@" in path:
        raise ValueError(f"has an @ behind its host: {_ENCODE}")
    try:
        options = {name: values[-1] for name, values in parse_qs(query, strict_parsing=bool(query)).items()}
    except ValueError:
        # The library's words would hold what may be a part of the password.
        raise ValueError(f"has a query that is not name=value: {_ENCODE}") from None
    credentials: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    if scheme == "unix":
        db = _db(options.pop("db", ""))
        _refuse(options)
        return Address(kind="unix", path=slash + unquote(path), db=db, **credentials)
    tls = scheme.startswith("rediss")
    kind, port = _KINDS.get("redis" + scheme[6:] if tls else scheme, (None, 0))
    if kind is None:
        raise ValueError(f"has a scheme that is not known: write {_FORMS}")
    steps = [unquote(step) for step in path.split("/") if step]
    service = ""
    if kind == "sentinel":
        if not steps:
            raise ValueError("names no service for the sentinels: write redis+sentinel://host,host/service")
        service = steps.pop(0)
        credentials["sentinel_username"] = options.pop("sentinel_user", None)
        credentials["sentinel_password"] = options.pop("sentinel_password", None)
    db = _db(options.pop("db", "") or (steps.pop(0) if steps else ""))
    if steps:
        raise ValueError(f"has too long a path: write {_FORMS}")
    if kind == "cluster" and db:
        raise ValueError("names a database, which a cluster has none of: leave it off")
    _refuse(options)
    found = tuple(_host(host, port) for host in (hosts or "localhost").split(","))
    if kind == "standalone" and len(found) > 1:
        raise ValueError("names several hosts: write redis+sentinel://... or redis+cluster://... for those")
    return Address(kind=kind, hosts=found, tls=tls, db=db, service=service, **credentials)


def _refuse(options: dict[str, str]) -> None:
    if options:
        raise ValueError(f"has an option that is not known ({', '.join(sorted(options))}): leave it off")


def _db(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError("has a database that is no number: write it like /0")
    return int(text or 0)


def _host(text: str, default_port: int) -> tuple[str, int]:
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if (
        not host
        or (":" in host and not text.startswith("["))
        or (port and not (port.isdecimal() and 0 < int(port) < 65536))
    ):
        raise ValueError(
            f"has a host or port that cannot be read: write host:port, an IPv6 address in brackets; {_ENCODE}"
        )
    return host, int(port or default_port)
