"""Kinds of values that several sections of the settings tree have. PURE.

Validators raise ValueError with what the value must be; `router.settings.explain` puts the key before it.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, Strict
from pydantic_core import PydanticCustomError

from router.core import Role
from router.wire.hosts import without_brackets

MOST_S = 31_536_000
"""A year: longer times are mistakes, and clocks and timers need not take them."""
MOST = 2**53
"""Of anything that is counted."""

Seconds = Annotated[float, Field(ge=0.001, le=MOST_S)]
SecondsOrZero = Annotated[float, Field(ge=0, le=MOST_S)]
Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]
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


def _host(value: str) -> str:
    value = without_brackets(value)
    if not value:
        raise ValueError("is empty: give the address to listen on, like 127.0.0.1, or 0.0.0.0 for every interface")
    if not value.isprintable() or any(sign in value for sign in " /[]"):
        raise ValueError("must be one address or host name without a port, like 127.0.0.1, ::1 or 0.0.0.0")
    return value


def _never(value: Any) -> Any:
    """0 equals false, and is none."""
    if value is not False:
        raise PydanticCustomError("literal_error", "false", {"expected": "false"})
    return value


def each_once(member: str) -> AfterValidator:
    """For a list of sections: no two with the same `member`."""

    def check(sections: tuple[Any, ...]) -> tuple[Any, ...]:
        values = [getattr(section, member) for section in sections]
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"holds {member} {value} twice: keep one of them")
        return sections

    return AfterValidator(check)


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
Host = Annotated[str, AfterValidator(_host)]
Never = Annotated[Literal[False], BeforeValidator(_never)]
"""False, where something else may be given."""
HostPort = Annotated[str, AfterValidator(_host_port)]
Networks = Annotated[tuple[str, ...], AfterValidator(_networks)]


def revealed(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
