"""RelayTransport: the relay's connections as an httpx transport, for control calls and whatever else speaks httpx.

httpx's own connection pool loses slots when requests are cancelled while it is full (encode/httpcore#1093), and a
control call is cancelled each time an engine is slower than its time-out. The relay has no slots to lose, and costs
a fraction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from router.core import Endpoint
from router.ports import UpstreamBroken, UpstreamRefused, UpstreamSilent
from router.upstream.connection import RelayResponse
from router.upstream.relay import Relay


class RelayTransport(httpx.AsyncBaseTransport):
    """Owns the relay it is given. Request bodies are read whole before they are sent."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        endpoint = Endpoint(id=url.host, url=f"{url.scheme}://{url.netloc.decode('ascii')}")
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        body = await request.aread()
        timeout_s: float | None = request.extensions.get("timeout", {}).get("read")
        try:
            response = await self._relay.open(
                endpoint,
                request.method.encode("ascii"),
                url.raw_path.decode("ascii"),
                headers,
                body,
                first_byte_timeout_s=timeout_s,
            )
        except UpstreamRefused as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except UpstreamSilent as error:
            raise httpx.ReadTimeout(str(error), request=request) from error
        except UpstreamBroken as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        return httpx.Response(response.status, headers=list(response.headers), stream=_Body(response, request))

    async def aclose(self) -> None:
        await self._relay.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: RelayResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._response.read():
                yield data
        except UpstreamSilent as error:
            raise httpx.ReadTimeout(str(error), request=self._request) from error
        except UpstreamBroken as error:
            raise httpx.RemoteProtocolError(str(error), request=self._request) from error

    async def aclose(self) -> None:
        self._response.abandon()
