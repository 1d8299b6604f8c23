"""Where a request's tokenization spends its time: us of CPU for reading, rendering, encoding and hashing one chat.

    python -m loadtest.bench.tokenization_bench [TOKENIZER]

TOKENIZER is a folder or hub id; by default the simulator's own. "New text" changes every prompt so that no cache of the
encoder knows it; "seen" repeats one. CPU time holds on a busy machine where wall time does not.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvindex.hashing import block_hashes, chain_root
from router.core import Api, InferenceRequest
from router.tokenization.conversation import build_conversation
from router.tokenization.loader import load_tokenizer
from router.tokenization.local import LocalTokenizer
from router.tokenization.registry import Tokenizers
from router.tokenization.service import ServiceLimits, TokenizationService
from router.wire.kv_transfer import decode_leg_body, prefill_leg_body
from router.wire.openai import parse_request

_DEFAULT = Path(__file__).parents[1] / "simulator" / "tokenizer"
_SIZES = {"small": 400, "32 KiB": 32 * 1024, "128 KiB": 128 * 1024}
_ROUNDS = 5
_ROUND_S = 0.15
_WORDS = (
    *("the", "of", "a", "to", "and", "in", "is", "that", "for", "it", "as", "was", "with", "on", "be", "by", "this"),
    *("request", "engine", "token", "prefix", "block", "cache", "router", "stream", "answer", "question", "paragraph"),
    *("because", "however", "système", "größer", "数据"),
)


def chat_body(size: int, rng: random.Random) -> bytes:
    """A conversation of about `size` bytes: a system message, then turns of up to 2 KiB."""
    messages = [{"role": "system", "content": "You are a careful assistant who answers in short sentences."}]
    while (left := size - len(json.dumps(messages))) > 40:
        words: list[str] = []
        while sum(map(len, words)) + len(words) < min(left - 40, 2000):
            words.append(rng.choice(_WORDS))
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": " ".join(words) + ".\n"})
    return json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 200}).encode()


def cpu_us(run: Callable[[], object]) -> float:
    """Median over rounds of the process' CPU time for one call, in us."""
    run()
    rounds = []
    for _ in range(_ROUNDS):
        calls, began = 0, time.process_time()
        while (spent := time.process_time() - began) < _ROUND_S or not calls:
            run()
            calls += 1
        rounds.append(spent / calls * 1e6)
    return statistics.median(rounds)


def measure(tokenizer: LocalTokenizer, size: int) -> Iterator[tuple[str, float]]:
    rng = random.Random(7)
    body = chat_body(size, rng)
    fields = parse_request(Api.CHAT, "/v1/chat/completions", body).fields
    tokens = tokenizer.chat(fields).ids
    root = chain_root("m")
    # More texts than rounds can repeat within the encoder's cache would be honest, but a hundred are near enough.
    unseen = iter([parse_request(Api.CHAT, "/", chat_body(size, rng)).fields for _ in range(_texts(size))] * 10_000)
    yield "tokens", len(tokens)
    yield "read the body", cpu_us(lambda: parse_request(Api.CHAT, "/v1/chat/completions", body))
    yield "build the conversation", cpu_us(lambda: build_conversation(fields["messages"], "string"))
    yield "render and encode, new text", cpu_us(lambda: tokenizer.chat(next(unseen)))
    yield "render and encode, seen", cpu_us(lambda: tokenizer.chat(fields))
    yield "hash (blocks of 16)", cpu_us(lambda: block_hashes(tokens, 16, root))
    yield "whole service, seen", _whole(tokenizer, body, fields)
    yield "both P/D legs' bodies", cpu_us(lambda: (prefill_leg_body(body, Api.CHAT), decode_leg_body(body, b"{}")))


def _texts(size: int) -> int:
    return max(20, min(400, 4_000_000 // size))


def _whole(tokenizer: LocalTokenizer, body: bytes, fields: Any) -> float:
    """`TokenizationService.tokenize` on the event loop, whatever the size."""

    async def run() -> float:
        limits = ServiceLimits(inline_max_bytes=1 << 30)
        service = TokenizationService(Tokenizers(lambda _: tokenizer, None, default="t"), limits=limits)
        await service.start()
        request = InferenceRequest(
            request_id="r", api=Api.CHAT, path="/", body=body, headers=(), model="m", fields=fields
        )
        rounds = []
        for _ in range(_ROUNDS):
            calls, began = 0, time.process_time()
            while (spent := time.process_time() - began) < _ROUND_S:
                await service.tokenize(request, ())
                calls += 1
            rounds.append(spent / calls * 1e6)
        await service.aclose()
        return statistics.median(rounds)

    return asyncio.run(run())


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else str(_DEFAULT)
    tokenizer = load_tokenizer(source)
    columns = {name: dict(measure(tokenizer, size)) for name, size in _SIZES.items()}
    table = Table("us of CPU a request", *columns, title=Path(source).name)
    for step in next(iter(columns.values())):
        table.add_row(
            step,
            *(f"{column[step]:,.0f}" if step == "tokens" else f"{column[step]:,.1f}" for column in columns.values()),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
