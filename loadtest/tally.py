"""Tally: tokens and requests of a whole run, added up over users and over locust's processes. PURE."""

from __future__ import annotations

import msgspec

from loadtest.measure import Usage


class Tally(msgspec.Struct, kw_only=True):
    """Sums since the run began."""

    requests: int = 0
    failures: int = 0
    unreported: int = 0
    """Answers without a word on cached tokens: they are left out of the hit rate."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def count(self, usage: Usage | None, *, failed: bool) -> None:
        """One request that ended."""
        self.requests += 1
        self.failures += failed
        if usage is None:
            self.unreported += not failed
            return
        self.completion_tokens += usage.completion_tokens
        if usage.cached_tokens is None:
            self.unreported += 1
            return
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens

    def add(self, other: Tally) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    @property
    def hit_rate(self) -> float | None:
        """Cached prompt tokens over prompt tokens (0..1); None before anything was reported."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def __str__(self) -> str:
        rate = "unknown" if self.hit_rate is None else f"{100 * self.hit_rate:.1f} %"
        text = (
            f"{self.requests} requests, {self.failures} failed; {self.prompt_tokens} prompt tokens, "
            f"{self.cached_tokens} of them cached: hit rate {rate}; {self.completion_tokens} completion tokens"
        )
        return f"{text}; {self.unreported} answers did not tell" if self.unreported else text
