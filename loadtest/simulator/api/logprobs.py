"""Log probabilities that look like a model's and depend on the token alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.simulator.text import SimTokenizer


def logprob(token_id: int, rank: int = 0) -> float:
    """A stable value below zero; lower for each rank."""
    return -0.05 - (token_id * 2654435761 % 1000) / 1000 - rank * 0.75


def _others(tokenizer: SimTokenizer, token_id: int, count: int) -> list[int]:
    return [(token_id + 97 * (i + 1)) % tokenizer.vocab_size for i in range(count)]


def _entry(tokenizer: SimTokenizer, token_id: int, rank: int, base: int) -> dict[str, Any]:
    text = tokenizer.piece(token_id)
    return {"token": text, "logprob": logprob(base, rank), "bytes": list(text.encode())}


def chat_logprobs(tokenizer: SimTokenizer, ids: Sequence[int], top: int) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice."""
    content = []
    for token in ids:
        ranked = [token, *_others(tokenizer, token, top - 1)][:top]
        entry = _entry(tokenizer, token, 0, token)
        entry["top_logprobs"] = [_entry(tokenizer, other, rank, token) for rank, other in enumerate(ranked)]
        content.append(entry)
    return {"content": content}


def completion_logprobs(tokenizer: SimTokenizer, ids: Sequence[int], top: int, offset: int) -> dict[str, Any]:
    """The ``logprobs`` of a completion choice whose text begins at `offset` characters."""
    offsets, values, tokens, tops = [], [], [], []
    for token in ids:
        text = tokenizer.piece(token)
        offsets.append(offset)
        offset += len(text)
        values.append(logprob(token))
        tokens.append(text)
        ranked = [token, *_others(tokenizer, token, top - 1)][: max(top, 1)]
        tops.append({tokenizer.piece(other): logprob(token, rank) for rank, other in enumerate(ranked)})
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}
