"""Going on with a broken stream: the next engine's body, and its answer told as the rest of the first one's. PURE.

The next engine is asked for a completion of the tokens that there are, whatever the first was asked for: so no template
is rendered again and no text tokenized again. Its events are told in the form, and under the id, of the first stream.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from router.core import Api
from router.wire.continuable import Terms
from router.wire.transcript import ABORT, Choice, EventReader, Transcript, read_event

PATH: Final = "/v1/completions"
_DONE: Final = b"data: [DONE]\n\n"


def asks_for_ids(terms: Terms) -> dict[str, bytes]:
    """What to set in the first engine's body so that the answer can be gone on with."""
    return {} if terms.shows_ids else {"return_token_ids": b"true"}


def continued_body(transcript: Transcript, max_model_len: int | None) -> bytes | None:
    """None: nothing may follow, or it is not known how much."""
    terms, produced = transcript.terms, transcript.produced
    limit = terms.max_tokens
    if limit is None and max_model_len is not None:
        limit = max_model_len - transcript.prompt_tokens
    if limit is None or limit <= produced:
        return None
    members: dict[str, Any] = {name: msgspec.Raw(raw) for name, raw in terms.carried.items()}
    members |= {
        "prompt": list(transcript.so_far()),
        "max_tokens": limit - produced,
        "stream": True,
        "return_token_ids": True,
    }
    if terms.min_tokens > produced:
        members["min_tokens"] = terms.min_tokens - produced
    if terms.include_usage:
        members["stream_options"] = {"include_usage": True, "continuous_usage_stats": terms.continuous_usage}
    return msgspec.json.encode(members)


def ending(transcript: Transcript) -> bytes:
    """What is still to be said of an answer whose output had ended when its stream broke."""
    if transcript.done:
        return b""
    if transcript.counted or not transcript.terms.include_usage:
        return _DONE
    prompt, output = transcript.prompt_tokens, transcript.produced
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    return _event(transcript, [], {"usage": usage}) + _DONE


class Continued:
    """Feed it the next engine's bytes; what comes back goes to the client."""

    def __init__(self, transcript: Transcript) -> None:
        """What the next engine says is added to `transcript`."""
        self._transcript = transcript
        self._before = transcript.produced
        self._reader = EventReader()
        self.failed = False
        """The engine reported a failure, or said something that cannot be told as the rest of the first answer."""

    def feed(self, chunk: bytes) -> bytes:
        told: list[bytes] = []
        for raw in self._reader.feed(chunk):
            if self.failed:
                break
            try:
                told.append(self._told(raw))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
                self.failed = True
        self.failed = self.failed or not self._reader.readable
        return b"".join(told)

    def _told(self, raw: bytes) -> bytes:
        event = read_event(raw)
        self._transcript.note_end(raw, event)
        if event is None:
            return _DONE if raw.startswith(b"data:") else raw
        self.failed = event.error is not None or not all(map(_known, event.choices))
        if self.failed:
            return b""
        more: dict[str, Any] = {}
        if event.usage is not None:
            more["usage"] = self._summed(event.usage)
        if event.system_fingerprint is not None:
            more["system_fingerprint"] = event.system_fingerprint
        choices = [self._choice(choice) for choice in event.choices if _says(choice)]
        if not choices and event.choices:
            return b""
        return _event(self._transcript, choices, more) if choices or event.usage is not None else b""

    def _choice(self, choice: Choice) -> dict[str, Any]:
        ids = choice.token_ids or []
        self._transcript.note(choice.text, ids, choice.finish_reason)
        shown = ids if self._transcript.terms.shows_ids else None
        told: dict[str, Any] = {"index": 0}
        if self._transcript.terms.api is Api.COMPLETIONS:
            told |= {"text": choice.text or "", "logprobs": None, "finish_reason": choice.finish_reason}
            return told | {"stop_reason": choice.stop_reason, "prompt_token_ids": None, "token_ids": shown}
        told |= {"delta": {"content": choice.text or ""}, "logprobs": None, "finish_reason": choice.finish_reason}
        if choice.finish_reason is not None:
            told["stop_reason"] = choice.stop_reason
        return told | {"token_ids": shown}

    def _summed(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Of the whole answer: what the first engines produced is output, and not prompt."""
        prompt = self._transcript.prompt_tokens
        output = usage.get("completion_tokens")
        if isinstance(output, int):
            whole = output + self._before
            usage = {**usage, "prompt_tokens": prompt, "total_tokens": prompt + whole, "completion_tokens": whole}
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            usage["prompt_tokens_details"] = {**details, "cached_tokens": min(cached, prompt)}
        return usage


def _known(choice: Choice) -> bool:
    return choice.token_ids is not None and choice.finish_reason != ABORT


def _says(choice: Choice) -> bool:
    return bool(choice.text or choice.token_ids) or choice.finish_reason is not None


def _event(transcript: Transcript, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
    identity = transcript.identity
    if identity is None:
        raise ValueError("a stream that is gone on with has been begun")
    kind = "text_completion" if transcript.terms.api is Api.COMPLETIONS else "chat.completion.chunk"
    head = {"id": identity.id, "object": kind, "created": identity.created, "model": identity.model}
    return b"data: " + msgspec.json.encode({**head, "choices": choices, **more}) + b"\n\n"
