"""Embeddings, scores, classes, tokenization and audio: answers in one piece whose values depend on the input alone."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any

from loadtest.simulator.api.completions import read_prompts
from loadtest.simulator.api.exchange import ApiError, Exchange
from loadtest.simulator.api.generate import check_prompt, resolve_model
from loadtest.simulator.api.messages import chat_prompt
from loadtest.simulator.api.params import parse_json, require, require_list
from loadtest.simulator.node import fresh_id

DIMENSIONS = 64
LABELS = ("negative", "positive")
SAMPLE_RATE = 16_000


async def _work(ex: Exchange, prompts: Sequence[Sequence[int]]) -> int:
    """Let the prompts' prefill time pass (they share no step with generation); their tokens in all. Raises ApiError."""
    engine = ex.engine
    for prompt in prompts:
        check_prompt(engine, prompt)
    await asyncio.sleep(sum(engine.profile.prefill_s(len(p), 0) for p in prompts) / engine.config.speed)
    return sum(map(len, prompts))


def _values(prompt: Sequence[int], count: int) -> list[float]:
    rng = random.Random(hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8).digest())
    values = [rng.gauss(0, 1) for _ in range(count)]
    norm = sum(v * v for v in values) ** 0.5
    return [v / norm for v in values]


def _score(prompt: Sequence[int]) -> float:
    return (1 + _values(prompt, 2)[0]) / 2


def _frame(prefix: str, model: str, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    frame = {"id": f"{prefix}-{fresh_id()}", "object": "list", "created": int(time.time()), "model": model}
    return {**frame, "data": data, "usage": usage}


async def _inputs(ex: Exchange, body: dict[str, Any]) -> list[Sequence[int]]:
    if "messages" in body:
        return [await chat_prompt(ex.engine, body, require_list(body, "messages"))]
    return await read_prompts(ex.engine, require(body, "input"))


async def embeddings(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    prompts = await _inputs(ex, body)
    tokens = await _work(ex, prompts)
    size = body.get("dimensions") or DIMENSIONS
    data = []
    for index, prompt in enumerate(prompts):
        values: Any = _values(prompt, int(size))
        if body.get("encoding_format") == "base64":
            values = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        data.append({"index": index, "object": "embedding", "embedding": values})
    await ex.json(_frame("embd", model, data, tokens))


async def pooling(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    prompts = await _inputs(ex, body)
    tokens = await _work(ex, prompts)
    data = [{"index": i, "object": "pooling", "data": _values(p, DIMENSIONS)} for i, p in enumerate(prompts)]
    await ex.json(_frame("pool", model, data, tokens))


async def classify(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    prompts = await _inputs(ex, body)
    tokens = await _work(ex, prompts)
    data = []
    for index, prompt in enumerate(prompts):
        yes = _score(prompt)
        label = LABELS[yes >= 0.5]
        data.append({"index": index, "label": label, "probs": [1 - yes, yes], "num_classes": len(LABELS)})
    await ex.json(_frame("classify", model, data, tokens))


def _texts(value: Any, name: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    texts = [v.get("text", "") if isinstance(v, dict) else v for v in values]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"{name} must be a string or a list of strings", param=name)
    return texts


async def _pairs(ex: Exchange, queries: list[str], documents: list[str]) -> list[Sequence[int]]:
    if len(queries) not in (1, len(documents)):
        raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
    firsts = queries * len(documents) if len(queries) == 1 else queries
    encode = ex.engine.tokenizer.encode
    return [await encode(f"{a}\n{b}", special=True) for a, b in zip(firsts, documents, strict=True)]


async def score(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    first = body.get("text_1", body.get("queries", body.get("query")))
    second = body.get("text_2", body.get("documents", body.get("items")))
    pairs = await _pairs(ex, _texts(first, "text_1"), _texts(second, "text_2"))
    tokens = await _work(ex, pairs)
    data = [{"index": i, "object": "score", "score": _score(pair)} for i, pair in enumerate(pairs)]
    await ex.json(_frame("score", model, data, tokens))


async def rerank(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    documents = _texts(require(body, "documents"), "documents")
    pairs = await _pairs(ex, _texts(require(body, "query"), "query"), documents)
    tokens = await _work(ex, pairs)
    results = [
        {"index": i, "document": {"text": documents[i], "multi_modal": None}, "relevance_score": _score(pair)}
        for i, pair in enumerate(pairs)
    ]
    results.sort(key=lambda r: -float(str(r["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    top = (body.get("top_n") or 0) or len(results)
    await ex.json({"id": f"rerank-{fresh_id()}", "model": model, "usage": usage, "results": results[:top]})


async def tokenize(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    engine = ex.engine
    resolve_model(engine, body)
    if "messages" in body:
        ids = await chat_prompt(engine, body, require_list(body, "messages"))
    else:
        text = require(body, "prompt")
        if not isinstance(text, str):
            raise ApiError(400, "prompt must be a string", param="prompt")
        ids = await engine.tokenizer.encode(text, special=body.get("add_special_tokens", True) is not False)
    strings = [engine.tokenizer.token(i) for i in ids] if body.get("return_token_strs") else None
    shown = {"count": len(ids), "max_model_len": engine.max_model_len, "tokens": list(ids), "token_strs": strings}
    await ex.json(shown)


async def detokenize(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    resolve_model(ex.engine, body)
    ids = require_list(body, "tokens")
    vocabulary = ex.engine.tokenizer.vocab_size
    if not all(isinstance(i, int) and 0 <= i < vocabulary for i in ids):
        raise ApiError(400, "tokens must be token ids of this vocabulary", param="tokens")
    await ex.json({"prompt": ex.engine.tokenizer.decode(ids)})


async def transcriptions(ex: Exchange) -> None:
    """A text whose length follows that of the upload. The upload itself is not read."""
    if not (ex.header(b"content-type") or "").startswith("multipart/form-data"):
        raise ApiError(400, "an audio file in multipart/form-data is wanted", "Bad Request", "file")
    seconds = max(1, len(ex.raw) // (2 * SAMPLE_RATE))
    rng = random.Random(hashlib.blake2b(ex.raw, digest_size=8).digest())
    text = " ".join(rng.choices(("river", "mountain", "north", "green", "stone", "music"), k=min(400, seconds * 2)))
    await ex.json({"text": text.capitalize() + ".", "usage": {"type": "duration", "seconds": seconds}})


async def speech(ex: Exchange) -> None:
    """A silent WAV file, a tenth of a second for each word."""
    body = parse_json(ex.raw)
    resolve_model(ex.engine, body)
    samples = b"\0\0" * (SAMPLE_RATE // 10) * min(1000, len(str(require(body, "input")).split()) or 1)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    data = struct.pack("<4sI", b"data", len(samples)) + samples
    wav = struct.pack("<4sI4s", b"RIFF", 4 + len(form) + len(data), b"WAVE") + form + data
    await ex.respond(200, wav, b"audio/wav")
