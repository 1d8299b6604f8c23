"""Play: a workload against a listening router, each request at its time, and what the client saw of it."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from loadtest.replay.workload import Request, Workload

_LOWEST_ID, _HIGHEST_ID = 300, 6000
"""Token ids of ordinary words in the simulator's vocabulary."""
_CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
_GRACE_S = 60.0
"""From the last arrival to the last answer."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One request, times in seconds."""

    number: int
    at: float
    """Since the workload began, as it was due."""
    late_s: float
    """How much later it was sent: the client's own slowness."""
    prompt: int
    cached: int
    """Prompt tokens that the engine had, as it says."""
    ttft_s: float | None
    """None: no token came."""
    e2e_s: float
    failed: bool


@lru_cache(maxsize=65536)
def block_tokens(block: int, size: int) -> tuple[int, ...]:
    """The tokens of a block id: the same for the same id."""
    return tuple(random.Random(f"block/{block}").choices(range(_LOWEST_ID, _HIGHEST_ID), k=size))


def prompt_tokens(request: Request, size: int) -> list[int]:
    """The prompt: its blocks, and a rest that no other prompt has."""
    tokens = [token for block in request.blocks for token in block_tokens(block, size)]
    rest = random.Random(f"rest/{request.number}")
    tokens += rest.choices(range(_LOWEST_ID, _HIGHEST_ID), k=request.prompt - len(tokens))
    return tokens


def message(request: Request, size: int, model: str) -> bytes:
    """The whole HTTP request."""
    body = msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt_tokens(request, size),
            "max_tokens": request.output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    ) + body


async def play(workload: Workload, port: int, model: str, progress: Callable[[int, int], None]) -> list[Played]:
    """All requests, in the order of their arrival. `progress` is told how many have ended and how many failed.

    Raises TimeoutError when answers are still missing a minute after the last arrival.
    """
    began = time.monotonic()
    played: list[Played] = []

    async def one(request: Request, sent: bytes) -> None:
        played.append(await _one(request, sent, port, began))
        progress(len(played), sum(each.failed for each in played))

    last = workload.requests[-1].at if workload.requests else 0.0
    async with asyncio.timeout(last + _GRACE_S), asyncio.TaskGroup() as group:
        for request in workload.requests:
            # Made before its time: how long that takes must not delay it.
            sent = message(request, workload.block_size, model)
            await asyncio.sleep(max(began + request.at - time.monotonic(), 0.0))
            group.create_task(one(request, sent))
    return sorted(played, key=lambda each: each.number)


async def _one(request: Request, sent: bytes, port: int, began: float) -> Played:
    sent_at = time.monotonic()
    first: float | None = None
    tail, whole = b"", False
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            good = head.split(b" ", 2)[1] == b"200"
            while chunk := await reader.read(65536):
                if first is None and good and b"data: {" in chunk:
                    first = time.monotonic() - sent_at
                tail = (tail + chunk)[-4096:]
            whole = good and b"data: [DONE]" in tail and b'"error"' not in tail
        finally:
            writer.transport.abort()
    except (OSError, asyncio.IncompleteReadError):
        whole = False
    cached = _CACHED.findall(tail)
    return Played(
        number=request.number,
        at=request.at,
        late_s=sent_at - began - request.at,
        prompt=request.prompt,
        cached=int(cached[-1]) if cached else 0,
        ttft_s=first,
        e2e_s=time.monotonic() - sent_at,
        failed=not whole or first is None,
    )


def counted(played: Sequence[Played], begin_s: float) -> list[Played]:
    """Those that were answered, without the first seconds, in which caches fill."""
    return [each for each in played if each.at >= begin_s and not each.failed]
