"""Kinds of values that several sections of the settings tree have. PURE.

Validators raise ValueError with what the value must be; `router.settings.explain` puts the key before it.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, Strict

from router.core import Role

Seconds = Annotated[float, Field(gt=0)]
SecondsOrZero = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
RoleName = Annotated[Role, Strict(False)]
"""Written as text, which strict validation would not take for a member."""


def engine_url(value: str) -> str:
    """An engine's base address in its one spelling, without a trailing slash. Raises ValueError with the mend."""
    try:
        parts = urlsplit(value.strip())
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address ({error}): write it like http://10.0.0.5:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address like http://10.0.0.5:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password: put the engine's key into api_key")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query or fragment: only http(s)://host[:port][/prefix]")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError("must be the engine's root: leave the /v1 off, the router adds it")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def _host_port(value: str) -> str:
    try:
        parts = urlsplit(f"udp://{value}")
        _ = parts.port, ip_address(parts.hostname or "")
    except ValueError:
        raise ValueError(
            "must be an IP address with or without a port, like 10.0.0.10, 10.0.0.10:5353 or [fd00::1]:53"
        ) from None
    return value


def _zmq_endpoint(value: str) -> str:
    if not value.startswith(("tcp://", "ipc://")):
        raise ValueError("must be a ZMQ address like tcp://10.0.0.5:5557")
    return value


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ip_network(value)
        except ValueError as error:
            raise ValueError(f"holds no network ({error}): write an address or a CIDR like 10.0.0.0/8") from None
    return values


EngineUrl = Annotated[str, AfterValidator(engine_url)]
ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]
HostPort = Annotated[str, AfterValidator(_host_port)]
Networks = Annotated[tuple[str, ...], AfterValidator(_networks)]


def revealed(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
