"""ControlClient: small requests to engines beside the streams: probes, scrapes, discovery, remote tokenization.

Every call has one time limit for all of it and one limit of size, and ends in a value or a `ControlError`. What an
engine says in a body never gets into an error.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import msgspec

from router.core import Endpoint
from router.upstream.patience import within
from router.upstream.relay import Relay, RelayOptions
from router.upstream.transport import RelayTransport

_JSON = {"content-type": "application/json"}


class ControlError(Exception):
    """A control call without a usable answer."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        """`reason`: ``refused``, ``timeout``, ``broken``, ``status``, ``too-large``, ``encoded`` or ``not-json``."""
        super().__init__(reason if status is None else f"{reason} {status}")
        self.reason = reason
        """A label of a bounded set."""
        self.status = status
        """The engine's status where it answered, else None."""


class ControlClient:
    """Keeps a few connections per endpoint of its own, so that probes and streams do not wait for one another."""

    def __init__(
        self,
        *,
        verify: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        max_bytes: int = 16 * 1024 * 1024,
        connect_timeout_s: float = 3.0,
        keep_idle_s: float = 4.0,
        tls_server_name: str | None = None,
    ) -> None:
        """`verify`: for https endpoints; None takes the system's certificates. `timeout_s`: unless a call says other.

        `keep_idle_s` must stay below the engine's keep-alive, 5 s with vLLM.
        """
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        options = RelayOptions(
            connect_timeout_s=connect_timeout_s, keep_idle_s=keep_idle_s, max_idle=4, tls_server_name=tls_server_name
        )
        self._client = httpx.AsyncClient(
            transport=RelayTransport(Relay(options, ssl_context=verify)), trust_env=False, timeout=None
        )

    async def get_text(self, endpoint: Endpoint, path: str, *, timeout_s: float | None = None) -> str:
        """Body of a 2xx answer to GET, as UTF-8 with what is not valid replaced. Raises `ControlError`."""
        return (await self._call("GET", endpoint, path, None, timeout_s)).decode("utf-8", "replace")

    async def get_json(self, endpoint: Endpoint, path: str, *, timeout_s: float | None = None) -> Any:
        """Decoded body of a 2xx answer to GET. Raises `ControlError`."""
        return _decoded(await self._call("GET", endpoint, path, None, timeout_s))

    async def post_json(self, endpoint: Endpoint, path: str, body: Any, *, timeout_s: float | None = None) -> Any:
        """Sends `body` as JSON, or as it is when it is bytes; decoded body of a 2xx answer. Raises `ControlError`."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return _decoded(await self._call("POST", endpoint, path, content, timeout_s))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _call(
        self, method: str, endpoint: Endpoint, path: str, content: bytes | None, timeout_s: float | None
    ) -> bytes:
        headers = {"accept-encoding": "identity"}
        if content is not None:
            headers |= _JSON
        if endpoint.api_key is not None:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        if endpoint.rank is not None:
            headers["x-data-parallel-rank"] = str(endpoint.rank)
        limit = self._timeout_s if timeout_s is None else timeout_s
        try:
            return await within(limit, self._exchange(method, endpoint.url + path, content, headers))
        except (TimeoutError, httpx.TimeoutException):
            raise ControlError("timeout") from None
        except httpx.ConnectError:
            raise ControlError("refused") from None
        except (httpx.TransportError, httpx.InvalidURL):
            raise ControlError("broken") from None

    async def _exchange(self, method: str, url: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        async with self._client.stream(method, url, content=content, headers=headers) as response:
            return await self._body(response)

    async def _body(self, response: httpx.Response) -> bytes:
        if not response.is_success:
            raise ControlError("status", status=response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            # Unpacking could make any number of bytes of it.
            raise ControlError("encoded", status=response.status_code)
        parts, length = [], 0
        async for part in response.aiter_raw():
            length += len(part)
            if length > self._max_bytes:
                raise ControlError("too-large", status=response.status_code)
            parts.append(part)
        return b"".join(parts)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ControlError("not-json") from None
