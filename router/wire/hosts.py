"""What a host is, by its name alone. PURE."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this host's own processes reach a listener that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_every_address(host: str) -> bool:
    """Whether a listener that is bound to `host` is reached at every address of the machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def without_brackets(host: str) -> str:
    """``[::1]``, as it stands in a URL, is ``::1``; anything else is left as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


def in_url(host: str) -> str:
    """As it stands before the port of a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
