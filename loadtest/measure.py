"""StreamMeasure: what a client sees of one streamed chat completion, line by line. PURE: times are arguments.

Times are those of arrival at the client, in seconds of any one clock. TTFT runs to the first chunk that carries part of
an answer (vLLM's opening chunk has only a role); ITL are the gaps between such chunks; TPOT is the time after the first
one divided by the tokens after it.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens as the engine counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens served from the cache; None when the engine does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class StreamMeasure:
    """Fed with the lines of an event stream and their times; says afterwards how it went."""

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.usage: Usage | None = None
        self.gaps_s: list[float] = []
        self._parts: list[str] = []
        self._first_at: float | None = None
        self._last_at = sent_at
        self._ended_at = sent_at
        self._finish: str | None = None
        self._done = False
        self._error: str | None = None

    def line(self, line: bytes, at: float) -> float | None:
        """One line of the stream. The gap in seconds to the part of the answer before it, if it carries one."""
        if not line.startswith(b"data:"):
            return None
        data = line[5:].strip()
        self._ended_at = at
        if data == b"[DONE]":
            self._done = True
            return None
        try:
            chunk = _decode(data)
        except msgspec.DecodeError:
            self._error = self._error or "a chunk that is no completion chunk"
            return None
        if chunk.error is not None:
            self._error = self._error or "an error in the stream"
        if chunk.usage is not None:
            self.usage = chunk.usage
        carried = False
        for choice in chunk.choices:
            delta = choice.delta
            self._finish = choice.finish_reason or self._finish
            if delta.content:
                self._parts.append(delta.content)
            carried = carried or bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
        return self._carried(at) if carried else None

    def _carried(self, at: float) -> float | None:
        gap = None if self._first_at is None else at - self._last_at
        if gap is None:
            self._first_at = at
        else:
            self.gaps_s.append(gap)
        self._last_at = at
        return gap

    @property
    def answer(self) -> str:
        return "".join(self._parts)

    @property
    def trouble(self) -> str | None:
        """Why this was no good answer, in words of a bounded number; None when it was one."""
        if self._error:
            return self._error
        if self._finish is None:
            return "the stream ended before the answer did"
        if self._finish == "abort":
            return "the engine gave the answer up"
        if not self._done:
            return "no [DONE] at the end of the stream"
        return None

    @property
    def ttft_s(self) -> float | None:
        return None if self._first_at is None else self._first_at - self.sent_at

    @property
    def e2e_s(self) -> float:
        return self._ended_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """None for an answer of one token, which has no time per further token."""
        tokens = self.usage.completion_tokens if self.usage else len(self.gaps_s) + 1
        if self._first_at is None or tokens < 2:
            return None
        return (self._last_at - self._first_at) / (tokens - 1)
