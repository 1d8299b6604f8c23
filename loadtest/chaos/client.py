"""One request of a chaos run as a client sees it, byte for byte, and what its answer was worth."""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum

import msgspec

_HEAD_BYTES = 64 * 1024
_DONE = b"data: [DONE]"
_ID = re.compile(rb'^data: \{"id":"([^"]*)"', re.M)
_TOKEN = re.compile(r" ?[A-Za-z]+|[.,]")


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Event(msgspec.Struct):
    choices: list[_Choice]


class Outcome(StrEnum):
    COMPLETE = "complete"
    CUT = "cut, visibly"
    """It began and broke off, and the client could tell."""
    LOST = "lost"
    """No byte of an answer, though somebody could have given one."""
    HIDDEN = "cut, not visibly"
    """It broke off and looks whole."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came over the connection."""

    status: int | None = None
    """None: no head came."""
    body: bytes = b""
    framed: bool = False
    """The body ended as its framing says."""
    error: str = ""
    """What broke the connection, if something did: the name of an exception."""
    connected: bool = True

    @property
    def turned_away(self) -> bool:
        """The router was not there or is about to end: a balancer asks another one."""
        if self.status is None:
            return not self.connected or (not self.body and self.error != "TimeoutError")
        return self.status == 503 and b'"shutting_down"' in self.body


async def ask(port: int, body: bytes, within_s: float) -> Answer:
    """POSTs a chat to a router on loopback, on a connection of its own."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_HEAD_BYTES)
    except OSError as error:
        return Answer(error=type(error).__name__, connected=False)
    got = _Got()
    try:
        async with asyncio.timeout(within_s):
            writer.write(head + body)
            await writer.drain()
            await got.read(reader)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        return got.answer(type(error).__name__)
    finally:
        writer.transport.abort()
    return got.answer("")


class _Got:
    """An answer as far as it came."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.parts: list[bytes] = []
        self.framed = False

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Raises `asyncio.IncompleteReadError`, OSError and ValueError where the answer breaks off."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length is not None:
            self.parts.append(await reader.readexactly(int(length[1])))
        else:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                self.parts.append((await reader.readexactly(size + 2))[:-2])
            await reader.readexactly(2)
        self.framed = True

    def answer(self, error: str) -> Answer:
        return Answer(status=self.status, body=b"".join(self.parts), framed=self.framed, error=error)


def judge(answer: Answer, *, stream: bool, tokens: int) -> Outcome:
    """`tokens`: how many the answer should have. PURE."""
    if answer.status != 200:
        return Outcome.LOST
    if not stream:
        # A whole answer is complete or cut short of its declared length; nothing in between can be said of it.
        if not answer.framed:
            return Outcome.CUT if answer.error != "TimeoutError" else Outcome.LOST
        return Outcome.COMPLETE if _completion_tokens(answer.body) == tokens else Outcome.HIDDEN
    ended = _DONE in answer.body
    if b'"error"' in answer.body or not answer.framed:
        if answer.error == "TimeoutError":
            return Outcome.LOST
        return Outcome.HIDDEN if ended else Outcome.CUT
    if not ended or b'"abort"' in answer.body:
        return Outcome.HIDDEN
    usage = answer.body.rpartition(b'"usage":')[2]
    found = re.search(rb'"completion_tokens": ?(\d+)', usage)
    whole = found is not None and int(found[1]) == tokens == _tokens_said(answer.body)
    return Outcome.COMPLETE if whole and len(set(_ID.findall(answer.body))) == 1 else Outcome.HIDDEN


def _tokens_said(body: bytes) -> int | None:
    """Tokens of a stream's text: simulated engines speak in words and stops, each a token of its own."""
    text = []
    for line in body.splitlines():
        if line.startswith(b"data: {"):
            try:
                event = msgspec.json.decode(line[6:], type=_Event)
            except msgspec.DecodeError:
                return None
            text += [choice.delta.content or "" for choice in event.choices]
    return len(_TOKEN.findall("".join(text)))


def _completion_tokens(body: bytes) -> int | None:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    usage = value.get("usage") if isinstance(value, dict) else None
    return usage.get("completion_tokens") if isinstance(usage, dict) else None
