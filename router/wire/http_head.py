"""The head of an upstream request: an endpoint's URL taken apart, the request line and fields put together. PURE.

The caller brings end-to-end fields only. Host and framing are written here, and a field of that kind that slips
through is left out, so that two framings can never meet in one head (RFC 9112, 6.3 and 11.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

_OWN = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"})
_TARGET = re.compile(r"/[\x21-\x7e]*")
_BEYOND_ASCII = re.compile(r"[\x80-\xff]")
_METHOD = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class OriginError(ValueError):
    """An endpoint URL that cannot be connected to; the message names what is wrong with it."""


class RequestHeadError(ValueError):
    """A method, path or field that would not stay on its own line of the head."""


class Origin(NamedTuple):
    """Where connections of one endpoint URL go, and what every request to it starts with."""

    host: str
    """Name or address, IPv6 without brackets."""
    port: int
    tls: bool
    authority: bytes
    """The Host field's value: IPv6 in brackets, the scheme's default port left out."""
    prefix: str
    """Path in front of every request's path; empty or ``/...`` without a trailing slash."""


def parse_origin(url: str) -> Origin:
    """``http(s)://host[:port][/prefix]`` -> `Origin`. Raises `OriginError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OriginError(f"endpoint URL is malformed: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise OriginError("endpoint URL must start with http:// or https://")
    if not parts.hostname:
        raise OriginError("endpoint URL has no host")
    if parts.username is not None or parts.password is not None:
        raise OriginError("endpoint URL must not hold credentials; set the endpoint's api_key instead")
    if parts.query or parts.fragment:
        raise OriginError("endpoint URL must not have a query or a fragment")
    prefix = parts.path.rstrip("/")
    if prefix and not _TARGET.fullmatch(prefix):
        raise OriginError("endpoint URL's path must be printable ASCII without spaces")
    tls = parts.scheme == "https"
    default = 443 if tls else 80
    try:
        name = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    except UnicodeError:
        raise OriginError("endpoint URL's host is not a valid name") from None
    shown = f"[{name}]" if ":" in name else name
    if port is not None and port != default:
        shown = f"{shown}:{port}"
    return Origin(name, default if port is None else port, tls, shown.encode("ascii"), prefix)


def request_head(
    origin: Origin, method: bytes, path: str, headers: Iterable[tuple[bytes, bytes]], body_length: int
) -> bytes:
    """Request line, fields and the empty line. Raises `RequestHeadError`.

    `path` is the request target in origin form, query included; bytes beyond ASCII, as latin-1 characters, are
    percent-encoded, everything else must be so already. Framing is always
    Content-Length; ``accept-encoding: identity`` is added unless the caller asks for something itself, because usage
    cannot be read from a compressed stream.
    """
    target = origin.prefix + path
    if not target.isascii():
        target = _BEYOND_ASCII.sub(lambda found: f"%{ord(found[0]):02X}", target)
    if not _TARGET.fullmatch(target) or not _METHOD.fullmatch(method):
        raise RequestHeadError("method and path must be printable ASCII without spaces, the path starting with /")
    lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method, target.encode("ascii"), origin.authority)]
    append = lines.append
    accepts = False
    for name, value in headers:
        if name in _OWN:
            continue
        if name == b"accept-encoding":
            accepts = True
        append(name + b": " + value)
    if not accepts:
        append(b"accept-encoding: identity")
    if body_length or method not in _BODILESS:
        append(b"content-length: %d" % body_length)
    count = len(lines) + 2
    append(b"\r\n")
    head = b"\r\n".join(lines)
    # One count finds a line break, of either half, smuggled into any field.
    if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
        raise RequestHeadError("a header field holds a line break or a NUL")
    return head
