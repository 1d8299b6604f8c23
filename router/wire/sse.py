"""What passes by in an engine's answer: first content, counts, usage, ends, errors; no chunk is rebuilt. PURE.

A scanner is fed with body bytes as they are forwarded. It looks at whole lines only, so it does not matter where an
event is cut; it decodes JSON until the first content has come, and after that only searches for the few byte strings
that matter. Nothing an engine sends makes it raise: what it cannot read, it passes over.

Lines are cheap to search because a JSON string cannot hold a bare quote or newline: ``"finish_reason":"`` found in a
line is a key, never text that a model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from router.core import Api
from router.wire.usage import Usage, find_usage, usage_at, usage_from_json

_TAIL_BYTES = 64 * 1024
_LAZY_BELOW = 4 * 1024
_MOST_REASONS = 8
_DONE = re.compile(rb'^data:\s*(?:\[DONE\]|\{.*"(?:message_stop|response\.(?:completed|incomplete|failed))")', re.M)
_ERROR = re.compile(rb'^(?:data:\s*\{\s*"(?:error"|type"\s*:\s*"error")|event:\s*(?:error|response\.failed)\s*$)', re.M)
_ERROR_CODE = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([A-Za-z0-9_.-]{1,40})"')
_STOP = re.compile(rb'"stop_reason"\s*:\s*"([A-Za-z0-9_.-]{1,40})"')
_STATUS = re.compile(rb'"status"\s*:\s*"(completed|incomplete|failed|cancelled)"')
_ABORT = re.compile(rb'"(?:finish|stop)_reason"\s*:\s*"abort"')
_CHAT_OUTPUT = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal", "function_call", "audio")


def before_abort(chunk: bytes) -> bytes:
    """Of a chunk of a stream in which an abort was seen, what goes before the event that tells it.

    Empty when that event began in an earlier chunk: what has gone out of it is then half an event.
    """
    found = _ABORT.search(chunk)
    ends = -1 if found is None else chunk.rfind(b"\n\n", 0, found.start())
    return chunk[: ends + 2] if ends >= 0 else b""


class StreamOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer went, as far as it was seen."""

    content_seen: bool = False
    """Text, reasoning, a tool call or the end of the output has come."""
    output_chunks: int = 0
    """Events that carried a delta. One may hold several tokens, or an end without any: an estimate beside `usage`."""
    usage: Usage | None = None
    finish_reasons: tuple[str, ...] = ()
    """Each reason once, in order of appearance; of /v1/responses the final status."""
    done: bool = False
    """The stream's closing event, or the JSON answer's end of output, has come."""
    error: bool = False
    """The engine reported a failure inside a stream whose status was 200."""
    error_code: int | None = None
    """The HTTP-like code in that report."""

    @property
    def aborted(self) -> bool:
        """The engine gave up: vLLM ends running streams so, with status 200, when it is told to stop."""
        return "abort" in self.finish_reasons

    @property
    def ended(self) -> bool:
        """It has said that its output is over, or that it failed."""
        return self.done or self.error or bool(self.finish_reasons)

    @property
    def output_tokens(self) -> int:
        """As reported, else the number of chunks."""
        counted = None if self.usage is None else self.usage.completion_tokens
        return self.output_chunks if counted is None else counted


class Scanner(Protocol):
    """Watches one answer."""

    @property
    def aborted(self) -> bool:
        """The engine has said that it gave up. Of a JSON answer this is known from `result` on."""
        ...

    @property
    def failing(self) -> bool:
        """It has given up or has reported an error."""
        ...

    @property
    def output_chunks(self) -> int:
        """Events with a delta so far; 0 where they cannot be counted."""
        ...

    def feed(self, chunk: bytes) -> bool:
        """True for the one chunk that brings the first content: TTFT ends with it."""
        ...

    def result(self) -> StreamOutcome:
        """What is known so far. At the end it also takes in a last line without a line break."""
        ...


def scanner_for(api: Api, content_type: bytes) -> Scanner:
    """The scanner for an answer with this Content-Type; `BlindScanner` where there is nothing to read."""
    kind = content_type.lower()
    if kind.startswith(b"text/event-stream"):
        return StreamScanner(api)
    if kind.startswith(b"application/json"):
        return JsonScanner(api)
    return BlindScanner()


class _Dialect(msgspec.Struct, frozen=True):
    """How one API's answer is read."""

    delta: bytes
    """Stands once in an event that carries output."""
    running: bytes
    """Stands in an event that carries output and is not the last of it."""
    ends: tuple[bytes, bytes]
    """One of them stands in every line that tells why the output ended."""
    reason: re.Pattern[bytes]
    last: bytes
    """Stands in the closing event."""
    has_output: Callable[[dict[str, Any]], bool]


def _chat_output(event: dict[str, Any]) -> bool:
    for choice in _dicts(event.get("choices")):
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(delta.get(name) for name in _CHAT_OUTPUT):
            return True
        if choice.get("finish_reason"):
            return True
    return False


def _completions_output(event: dict[str, Any]) -> bool:
    choices = _dicts(event.get("choices"))
    return any(choice.get("text") or choice.get("finish_reason") for choice in choices)


def _messages_output(event: dict[str, Any]) -> bool:
    delta = event.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(name) for name in ("text", "thinking", "partial_json", "stop_reason"))


def _responses_output(event: dict[str, Any]) -> bool:
    kind = event.get("type")
    if not isinstance(kind, str):
        return False
    return bool(kind.endswith(".delta") and event.get("delta")) or kind in ("response.completed", "response.incomplete")


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_FINISH_KEYS = (b'"finish_reason":"', b'"finish_reason": "')
_RUNNING = b'"finish_reason":null'
_CHAT = _Dialect(b'"delta":', _RUNNING, _FINISH_KEYS, _FINISH, b"[DONE]", _chat_output)
_COMPLETIONS = _Dialect(b'"text":', _RUNNING, _FINISH_KEYS, _FINISH, b"[DONE]", _completions_output)
_MESSAGES = _Dialect(
    b'"content_block_delta"',
    b'"content_block_delta"',
    (b'"stop_reason":"', b'"stop_reason": "'),
    _STOP,
    b'"message_stop"',
    _messages_output,
)
_RESPONSES = _Dialect(
    b'.delta"',
    b'.delta"',
    (b'"response.completed"', b'"response.incomplete"'),
    _STATUS,
    b'"response.',
    _responses_output,
)
_DIALECTS = {Api.COMPLETIONS: _COMPLETIONS, Api.MESSAGES: _MESSAGES, Api.RESPONSES: _RESPONSES}


class StreamScanner:
    """Watches a ``text/event-stream`` body. Keeps at most 64 KiB of an unfinished line."""

    __slots__ = (
        "_api",
        "_chunks",
        "_content",
        "_dialect",
        "_done",
        "_error",
        "_error_code",
        "_first_usage",
        "_last_usage",
        "_reasons",
        "_tail",
        "_usage_in",
        "aborted",
        "failing",
    )

    def __init__(self, api: Api) -> None:
        self.aborted = False
        self.failing = False
        self._api = api
        self._dialect = _DIALECTS.get(api, _CHAT)
        self._tail = bytearray()
        self._chunks = 0
        self._content = False
        self._done = False
        self._error = False
        self._error_code: int | None = None
        self._reasons: list[str] = []
        self._first_usage: Usage | None = None
        self._last_usage: Usage | None = None
        self._usage_in = b""

    @property
    def output_chunks(self) -> int:
        return self._chunks

    def feed(self, chunk: bytes) -> bool:
        if self._tail or not chunk.endswith(b"\n"):
            lines = self._whole_lines(chunk)
            return self._scan(lines) if lines else False
        return self._scan(chunk)

    def result(self) -> StreamOutcome:
        if self._tail:
            rest = bytes(self._tail)
            self._tail.clear()
            self._scan(rest)
        usage = usage_from_json(self._usage_in) if self._usage_in else self._last_usage
        return StreamOutcome(
            content_seen=self._content,
            output_chunks=self._chunks,
            usage=self._first_usage if usage is None else usage.or_else(self._first_usage),
            finish_reasons=tuple(self._reasons),
            done=self._done,
            error=self._error,
            error_code=self._error_code,
        )

    def _whole_lines(self, chunk: bytes) -> bytes:
        """The complete lines that `chunk` finishes; what follows them waits for the next chunk."""
        tail = self._tail
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            tail += chunk
            lines = b""
        else:
            lines = bytes(tail) + chunk[:cut]
            tail[:] = chunk[cut:]
        if len(tail) > _TAIL_BYTES:
            # Usage and end stand last in an event; of a longer line only the beginning is lost.
            del tail[:-_TAIL_BYTES]
        return lines

    def _scan(self, lines: bytes) -> bool:
        """`lines` is one or more whole lines. Runs for every chunk: byte searches only, once content has come."""
        dialect = self._dialect
        first = False
        if self._content:
            deltas = lines.count(dialect.delta)
            self._chunks += deltas
            if deltas == 1 and lines.count(b"data:") == 1 and dialect.running in lines:
                # The common case, one event in the middle of the output: nothing but usage can be in it.
                if b'"usage"' in lines:
                    self._note_usage(lines)
                return False
        else:
            first = self._look_for_output(lines)
        compact, spaced = dialect.ends
        if compact in lines or spaced in lines:
            first = self._note_end(lines) or first
        if b'"usage"' in lines:
            self._note_usage(lines)
        if dialect.last in lines and _DONE.search(lines):
            self._done = True
        if b"error" in lines or b".failed" in lines:
            self._note_error(lines)
        return first

    def _look_for_output(self, lines: bytes) -> bool:
        at = 0
        while (begin := lines.find(b"data:", at)) >= 0:
            end = lines.find(b"\n", begin)
            at = len(lines) if end < 0 else end
            if begin and lines[begin - 1] != 10:
                continue
            try:
                event = msgspec.json.decode(lines[begin + 5 : at])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(event, dict) and self._dialect.has_output(event):
                self._content = True
                self._chunks += lines.count(self._dialect.delta, begin)
                return True
        return False

    def _note_end(self, lines: bytes) -> bool:
        reasons = self._dialect.reason.findall(lines)
        if self._api is Api.RESPONSES:
            # Output items have a status of their own; the response's comes last.
            reasons = reasons[-1:]
            self._error = self._error or reasons == [b"failed"]
        self.aborted = self.aborted or b"abort" in reasons
        self.failing = self.failing or self.aborted or self._error
        for reason in reasons:
            word = reason.decode("ascii")
            if word not in self._reasons and len(self._reasons) < _MOST_REASONS:
                self._reasons.append(word)
        if not reasons or self._content:
            return False
        self._content = True
        return True

    def _note_usage(self, lines: bytes) -> None:
        """The first report is read at once; of the many that continuous usage brings, only the last."""
        at = find_usage(lines)
        if at < 0:
            return
        if self._first_usage is None:
            self._first_usage = usage_at(lines, at)
        if len(lines) > _LAZY_BELOW:
            self._last_usage, self._usage_in = usage_from_json(lines), b""
        else:
            self._usage_in = lines

    def _note_error(self, lines: bytes) -> None:
        found = _ERROR.search(lines)
        if found is None:
            return
        self._error = self.failing = True
        code = _ERROR_CODE.search(lines, found.start())
        if code is not None and self._error_code is None:
            self._error_code = int(code[1])


class JsonScanner:
    """Watches an ``application/json`` body: usage and ends stand near its end, so the last 64 KiB are kept."""

    __slots__ = ("_api", "_dialect", "_found", "_tail", "aborted", "failing")

    output_chunks = 0

    def __init__(self, api: Api) -> None:
        self.aborted = self.failing = False
        self._found: StreamOutcome | None = None
        self._api = api
        self._dialect = _DIALECTS.get(api, _CHAT)
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> bool:
        self._found = None
        tail = self._tail
        tail += chunk
        if len(tail) > _TAIL_BYTES:
            del tail[:-_TAIL_BYTES]
        return False

    def result(self) -> StreamOutcome:
        if self._found is None:
            self._found = self._read()
            self.aborted = self.failing = self._found.aborted
        return self._found

    def _read(self) -> StreamOutcome:
        body = bytes(self._tail)
        reasons = self._dialect.reason.findall(body)
        if self._api is Api.RESPONSES:
            reasons = reasons[-1:]
        words = tuple(dict.fromkeys(reason.decode("ascii") for reason in reasons))[:_MOST_REASONS]
        return StreamOutcome(
            content_seen=bool(words), usage=usage_from_json(body), finish_reasons=words, done=bool(words)
        )


class BlindScanner:
    """For bodies that say nothing about tokens, such as audio."""

    __slots__ = ()

    aborted = failing = False
    output_chunks = 0

    def feed(self, chunk: bytes) -> bool:
        return False

    def result(self) -> StreamOutcome:
        return StreamOutcome()
