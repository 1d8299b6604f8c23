"""The beginning of an engine's answer, held back until it shows whether the engine failed.

An engine sends ``200`` and then fails inside the body: vLLM that is told to stop ends its streams with
``finish_reason: "abort"`` and ``[DONE]``, a stream may end without an event, or begin with an error. While nothing has
gone to the client such an answer can still be asked of another endpoint, so a stream is held until its first content
and a JSON answer until its end, both within bounds.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from router.core import Api
from router.ports import UpstreamBroken, UpstreamResponse
from router.wire.sse import Scanner, StreamOutcome, StreamScanner

_HOLD_BYTES = 1024 * 1024
_HOLD_S = 0.1
"""How long a stream's first, contentless event is held: vLLM sends it together with the first content."""

_TELL_THEIR_END = (Api.CHAT, Api.COMPLETIONS)
UNENDED = "the engine ended its stream without a finish_reason or [DONE]"


def broke_off(api: Api, scanner: Scanner, found: StreamOutcome) -> bool:
    """Whether a stream that has ended is a piece of one, however well HTTP framed it.

    Chats and completions say why their output ends, and then ``[DONE]``: one of the two is enough.
    """
    return api in _TELL_THEIR_END and isinstance(scanner, StreamScanner) and not found.ended


class Opening(NamedTuple):
    """`data` is what was held and is now the client's, `content` whether the first content is in it."""

    data: bytes
    content: bool
    failure: str | None = None
    """``abort``, ``empty`` or ``error``: what the answer turned out to be; a metric label. None: nothing is wrong."""


async def hold(api: Api, response: UpstreamResponse, content_type: bytes, scanner: Scanner) -> Opening:
    """Reads and scans the answer's beginning. Raises `UpstreamError` where the answer breaks off meanwhile.

    Answers that are not a success, and those whose form says nothing of an end, are not held.
    """
    if api is Api.OTHER or response.status != 200:
        return Opening(b"", False)
    if content_type.startswith(b"text/event-stream"):
        return await _hold_stream(api, response, scanner)
    if content_type.startswith(b"application/json"):
        return await _hold_json(response, scanner)
    return Opening(b"", False)


async def _hold_stream(api: Api, response: UpstreamResponse, scanner: Scanner) -> Opening:
    data = response.read_nowait() or await response.read()
    if not data:
        return Opening(b"", False, "empty")
    content = scanner.feed(data)
    if not content and not scanner.failing:
        try:
            async with asyncio.timeout(_HOLD_S):
                while not content and not scanner.failing and len(data) < _HOLD_BYTES:
                    chunk = response.read_nowait() or await response.read()
                    if not chunk:
                        return _of_nothing(api, data, scanner)
                    data += chunk
                    content = scanner.feed(chunk)
        except TimeoutError:
            pass
    if not scanner.failing:
        return Opening(data, content)
    return Opening(data, content, _failure(scanner.result()))


def _of_nothing(api: Api, data: bytes, scanner: Scanner) -> Opening:
    """Of a stream that ended before any content. Raises `UpstreamBroken` where it is none of its API's."""
    found = scanner.result()
    if broke_off(api, scanner, found):
        raise UpstreamBroken(UNENDED)
    if api in _TELL_THEIR_END and not found.content_seen and not found.error:
        return Opening(data, False, "empty")
    return Opening(data, found.content_seen, _failure(found))


def _failure(found: StreamOutcome) -> str | None:
    if found.aborted:
        return "abort"
    # An error of the request's own is the client's to know, wherever the engine says it.
    refused = found.error_code is not None and 400 <= found.error_code < 500
    return None if refused or not found.error else "error"


async def _hold_json(response: UpstreamResponse, scanner: Scanner) -> Opening:
    parts: list[bytes] = []
    size = 0
    while size < _HOLD_BYTES:
        chunk = response.read_nowait() or await response.read()
        if not chunk:
            return Opening(b"".join(parts), False, "abort" if scanner.result().aborted else None)
        scanner.feed(chunk)
        size += len(chunk)
        parts.append(chunk)
    return Opening(b"".join(parts), False)
