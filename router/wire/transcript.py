"""Transcript: what a client has been sent of one streamed answer, kept so that another engine can go on from it. PURE.

It passes whole events only: a stream that breaks in the middle of one can then be gone on with. The engine is asked for
token ids (``return_token_ids``); where the client has not asked for them they are taken out again, and everything else
passes as it came.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core import Api
from router.wire.continuable import Terms

_END: Final = b"\n\n"
_HELD_BYTES: Final = 1024 * 1024
ABORT: Final = "abort"
"""Why an output ended that an engine gave up."""
_IDS = re.compile(rb'"((?:prompt_)?token_ids)"\s*:\s*\[[0-9,\s]*\]')
_SPOKEN: Final = frozenset({"role", "content"})


class Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: dict[str, Any] | None = None
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Event(msgspec.Struct):
    """One event of a chat's or a completion's stream."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    system_fingerprint: str | None = None
    error: dict[str, Any] | None = None


_events = msgspec.json.Decoder(Event)


class Identity(msgspec.Struct, frozen=True):
    """What all events of one stream say of it."""

    id: str
    created: int
    model: str


class EventReader:
    """Cuts a stream into whole events; holds the one that is not."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes, each with the empty line that ends it."""
        data = self._held + chunk
        cut = data.rfind(_END) + len(_END)
        if cut < len(_END):
            self._held = data
            return []
        self._held = data[cut:]
        return [event + _END for event in data[: cut - len(_END)].split(_END)]

    @property
    def readable(self) -> bool:
        """Its events end as ours do, and are of bearable length."""
        return len(self._held) <= _HELD_BYTES and b"\r\n\r\n" not in self._held

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


def read_event(raw: bytes) -> Event | None:
    """None: it is none of those whose form is known. Raises `msgspec.DecodeError`."""
    if not raw.startswith(b"data:"):
        return None
    payload = raw[5:].strip()
    return None if payload == b"[DONE]" else _events.decode(payload)


class Transcript:
    """Feed it the first engine's bytes; what comes back goes to the client."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.exact = True
        """So far nothing has come that the tokens do not tell."""
        self.identity: Identity | None = None
        self.finished = False
        """The output has ended, whatever else was still to come."""
        self.counted = False
        """The usage of all of it has been told."""
        self.done = False
        """So has its end."""
        self.failed = False
        """The engine reported a failure of its own. That, and what follows it, does not pass."""
        self._prompt: array[int] | None = None
        self._ids: array[int] = array("I")
        self._safe = 0
        """Ids whose whole text the client has: an engine keeps back the beginning of a character."""
        self._single = True
        """The last text came with one token, so none of it can be kept back."""
        self._reader = EventReader()
        self._raw = False
        """It does not come in events that can be told apart."""

    @property
    def resumable(self) -> bool:
        """What the client has is known to the token."""
        return self.exact and self.identity is not None and (self.finished or self._known)

    @property
    def _known(self) -> bool:
        return self._prompt is not None and self._single

    @property
    def prompt_tokens(self) -> int:
        return 0 if self._prompt is None else len(self._prompt)

    @property
    def produced(self) -> int:
        """Tokens of the answer that the client has."""
        return len(self._ids) if self.finished else self._safe

    def so_far(self) -> Iterator[int]:
        """Ids of the prompt, then of what the client has of the answer. What it has not is forgotten."""
        del self._ids[self._safe :]
        if self._prompt is not None:
            yield from self._prompt
        yield from self._ids

    def feed(self, chunk: bytes) -> bytes:
        if self.failed:
            return b""
        if self._raw:
            return chunk
        passed: list[bytes] = []
        for raw in self._reader.feed(chunk):
            if self.exact and not self._passes(raw):
                return self._shown(b"".join(passed))
            passed.append(raw)
        if not self._reader.readable:
            self.exact, self._raw = False, True
            passed.append(self._reader.rest())
        return self._shown(b"".join(passed))

    def end(self) -> bytes:
        """What was held when the stream ended in good form."""
        return b"" if self.failed else self._shown(self._reader.rest())

    def note_end(self, raw: bytes, event: Event | None) -> None:
        """What is said behind the output goes to the client."""
        if event is None:
            self.done = self.done or raw.startswith(b"data:")
        elif event.usage is not None and not event.choices:
            self.counted = True

    def note(self, text: str | None, ids: list[int], finish_reason: str | None) -> None:
        """One more piece of the answer goes to the client."""
        self._ids.extend(ids)
        self.finished = self.finished or finish_reason is not None
        if text:
            self._safe = len(self._ids)
            self._single = len(ids) == 1

    def _passes(self, raw: bytes) -> bool:
        try:
            event = read_event(raw)
            self.note_end(raw, event)
            if event is not None:
                self._note_event(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            self.exact = False
        return not self.failed

    def _note_event(self, event: Event) -> None:
        if event.error is not None:
            code = event.error.get("code")
            # An error of the request's own is the client's to know, wherever the engine says it.
            self.failed = not (isinstance(code, int) and 400 <= code < 500)
            self.exact = self.failed
            return
        if self.identity is None and event.id is not None and event.created is not None and event.model is not None:
            self.identity = Identity(event.id, event.created, event.model)
        for choice in event.choices:
            self._note_choice(event, choice)

    def _note_choice(self, event: Event, choice: Choice) -> None:
        prompt = choice.prompt_token_ids if event.prompt_token_ids is None else event.prompt_token_ids
        if prompt is not None:
            self._prompt = array("I", prompt)
        if choice.index or choice.logprobs is not None or (choice.delta is not None and not _only_speaks(choice.delta)):
            self.exact = False
            return
        if choice.finish_reason == ABORT:
            self.failed = True
        elif choice.token_ids is not None:
            text = choice.text if self.terms.api is Api.COMPLETIONS else (choice.delta or {}).get("content")
            self.note(text, choice.token_ids, choice.finish_reason)
        elif choice.text or (choice.delta or {}).get("content") or choice.finish_reason is not None:
            self.exact = False

    def _shown(self, data: bytes) -> bytes:
        return data if self.terms.shows_ids or b"token_ids" not in data else _IDS.sub(rb'"\1":null', data)


def _only_speaks(delta: dict[str, Any]) -> bool:
    return all(name in _SPOKEN or not value for name, value in delta.items())
