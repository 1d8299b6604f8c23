"""EngineProfile: how long a step of the simulated engine takes. PURE.

All times are seconds of the engine's own clock; the driver divides them by its speed. The constants come from
`profiles.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of one class of engine."""

    prefill_tokens_per_s: float
    attention_s: float
    """Seconds per pair of a new token and a token of its context."""
    step_s: float
    per_seq_s: float
    per_kv_token_s: float
    kv_tokens: int
    """Capacity of the block cache, unless a number of blocks is configured."""
    chunk: int
    """Most tokens (prefill and decode together) in one step."""
    max_seqs: int

    def prefill_s(self, tokens: int, context: int) -> float:
        """Time for `tokens` new prompt tokens behind `context` earlier ones. Additive over chunks."""
        return tokens / self.prefill_tokens_per_s + self.attention_s * tokens * (context + tokens / 2)

    def decode_s(self, batch: int, kv_tokens: int) -> float:
        """Time of one decode step of `batch` sequences over `kv_tokens` tokens of context in all; 0 without a batch."""
        if batch == 0:
            return 0.0
        return self.step_s + self.per_seq_s * batch + self.per_kv_token_s * kv_tokens

    def step_time(self, prefills: Iterable[tuple[int, int]], batch: int, kv_tokens: int) -> float:
        """Time of a step that carries prefill chunks ``(tokens, context)`` beside a decode batch."""
        return sum(self.prefill_s(n, p) for n, p in prefills) + self.decode_s(batch, kv_tokens)
