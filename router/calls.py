"""What commands that ask a running router share: its address, header fields, the key, and what stands in the way."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import httpx

from router.errors import ConfigError
from router.settings.keys import sendable

KEY_VARIABLE = "KVROUTER_API_KEY"
Fields = Sequence[tuple[bytes, bytes]]
"""Header fields, names in lower case."""

_EXAMPLE = "http://127.0.0.1:8000"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHOWN = 60


def router_address(text: str) -> str:
    """As it is asked: as with curl, what names no scheme is http. Raises `ConfigError`."""
    url = text if "://" in text else f"http://{text}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    whole = not (parsed.query or parsed.fragment) and (parsed.port is None or 0 < parsed.port < 65536)
    if parsed.scheme not in ("http", "https") or not parsed.host or not whole or any(map(str.isspace, text)):
        raise ConfigError(f"{ascii(text[:_SHOWN])[1:-1]} is no address of a router: write it like {_EXAMPLE}")
    return url.rstrip("/")


def header_fields(texts: Sequence[str]) -> Fields:
    """Of ``--header`` as curl takes it, ``NAME: VALUE``. Raises `ConfigError`, which shows no value."""
    fields = []
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _NAME.fullmatch(name):
            raise ConfigError("--header: a field has no name and colon: write it like x-llm-d-slo-ttft-ms:500")
        if not sendable(value):
            raise ConfigError(f"--header: the value of {name} has a control character, which cannot be sent")
        fields.append((name.lower().encode("ascii"), value.encode()))
    return fields


def call(
    method: str,
    address: str,
    path: str,
    *,
    body: bytes | None = None,
    fields: Fields = (),
    params: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> httpx.Response:
    """The router's answer, whatever its status but 401. The key is `KEY_VARIABLE`'s unless `fields` has one.

    Raises `ConfigError` for a router that cannot be reached or wants another key.
    """
    key = os.environ.get(KEY_VARIABLE)
    headers = list(fields)
    if key and not any(name == b"authorization" for name, _ in fields):
        headers.append((b"authorization", b"Bearer " + key.encode()))
    try:
        answer = httpx.request(
            method, f"{address}{path}", content=body, headers=headers, params=params, timeout=timeout_s
        )
    except httpx.HTTPError as error:
        raise ConfigError(
            f"{address} cannot be asked ({type(error).__name__}): give a running router's address"
        ) from None
    if answer.status_code == 401:
        raise ConfigError(f"{address} wants a key, an admin key if it has some: set {KEY_VARIABLE}")
    return answer
