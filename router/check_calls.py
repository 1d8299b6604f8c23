"""What `kvrouter check` says to an engine: bounded HTTP calls, and whether a socket can be reached."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

_ANSWER_BYTES = 16 * 1024 * 1024
_CLOSED = (httpx.RemoteProtocolError, httpx.ReadError)
_OTHER_NAME = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class Answer(NamedTuple):
    """An engine's answer; `status` 0 is none, and `text` says why in a few words."""

    status: int
    text: str
    mend: str = "start it, or correct its url"
    """What to do about no answer."""


class Calls:
    """Calls to one engine, with its key."""

    def __init__(self, client: httpx.AsyncClient, url: str, api_key: str | None) -> None:
        self._client = client
        self._url = url
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Never raises for what the engine does."""
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        try:
            async with self._client.stream(method, f"{self._url}{path}", headers=headers, content=body) as response:
                text = bytearray()
                async for chunk in response.aiter_bytes():
                    text += chunk
                    if len(text) > _ANSWER_BYTES:
                        return Answer(0, "an answer without end")
                return Answer(response.status_code, text.decode("utf-8", "replace"))
        except httpx.TimeoutException:
            return Answer(0, "no answer in time")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return self._none(error)

    def _none(self, error: Exception) -> Answer:
        refused = _of_tls(error)
        if isinstance(refused, ssl.SSLCertVerificationError):
            if refused.verify_code in _OTHER_NAME:
                mend = "correct its url, or name what its certificate is for in upstream.tls_server_name"
            else:
                mend = "name the certificate of the authority that signed it (or its own) in upstream.ca_file"
            return Answer(0, f"certificate not trusted: {refused.verify_message}", mend)
        # With TLS 1.3 a server that misses a client's certificate closes the connection where it should answer.
        if urlsplit(self._url).scheme == "https" and (refused is not None or isinstance(error, _CLOSED)):
            why = "TLS failed" if refused is not None else "it closed the connection without an answer"
            return Answer(0, why, "if it asks for a client's certificate, name one in upstream.client_cert_file")
        return Answer(0, _reason(error))


async def unreachable(address: str, timeout_s: float) -> str:
    """Why nothing can be connected to at a ZMQ address; empty when something can, or it is no TCP address."""
    parts = urlsplit(address)
    if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
        return ""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except TimeoutError:
        return "no answer in time"
    except OSError as error:
        return _os_reason(error)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return ""


def _of_tls(error: Exception) -> ssl.SSLError | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _reason(error: Exception) -> str:
    """The operating system's own words for a failed connection, where there are some."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return _os_reason(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _os_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    return os.strerror(error.errno).lower() if error.errno else "cannot connect"
