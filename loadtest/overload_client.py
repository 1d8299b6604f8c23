"""Calls: streamed chats over bare sockets, cheap enough that the client is not what a run measures."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import NamedTuple

_COMPLETION = re.compile(rb'"completion_tokens":\s*(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d+)')
_CACHED = re.compile(rb'"cached_tokens":\s*(\d+)')


class Kind(NamedTuple):
    """What a request is."""

    tenant: str
    objective: str | None
    prompt_words: int
    output_tokens: int


class Call(NamedTuple):
    """How one request went. Times in seconds."""

    kind: Kind
    sent_at: float
    status: int
    first_token_s: float | None
    whole_s: float
    tokens: int
    """Computed for it: output, and prompt that was not cached."""
    output_tokens: int
    retry_after: bool


class Address(NamedTuple):
    host: str
    port: int


async def call(router: Address, model: str, kind: Kind, number: int) -> Call:
    """Raises OSError when the router cannot be reached or breaks off."""
    # The number stands first, so that no two prompts share a prefix.
    content = f"{number} " + "alpha beta gamma delta " * (kind.prompt_words // 4)
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": kind.output_tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": content}],
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {router.host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\nx-llm-d-inference-fairness-id: {kind.tenant}\r\n"
    )
    if kind.objective is not None:
        head += f"x-llm-d-inference-objective: {kind.objective}\r\n"
    sent_at = time.monotonic()
    reader, writer = await asyncio.open_connection(*router)
    try:
        writer.write(head.encode() + b"\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        first_token_s = None
        tail = b""
        while chunk := await reader.read(65536):
            if first_token_s is None and status == 200 and b'"content":"' in chunk.replace(b'": "', b'":"'):
                first_token_s = time.monotonic() - sent_at
            tail = (tail + chunk)[-4096:]
    finally:
        writer.close()
    output = _number(_COMPLETION, tail)
    return Call(
        kind=kind,
        sent_at=sent_at,
        status=status,
        first_token_s=first_token_s,
        whole_s=time.monotonic() - sent_at,
        tokens=output + _number(_PROMPT, tail) - _number(_CACHED, tail),
        output_tokens=output,
        retry_after=b"retry-after:" in answer.lower(),
    )


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.findall(text)
    return int(found[-1]) if found else 0
