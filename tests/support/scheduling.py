"""Factories of what the scheduler works on: endpoints, candidates, prompts, requests, contexts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from router.core import (
    Api,
    Candidate,
    Endpoint,
    EndpointMatch,
    EndpointMetrics,
    EndpointState,
    InferenceRequest,
    Inflight,
    Leg,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.scheduling.plugins import Context

BLOCK = 16
NOW = 1000.0


def candidate(
    id_: str = "a",
    *,
    role: Role = Role.BOTH,
    labels: Mapping[str, str] | None = None,
    inflight: int = 0,
    prefill_tokens: int = 0,
    tokens: int = 0,
    matched: int = 0,
    device: int | None = None,
    running: float | None = None,
    waiting: float | None = None,
    kv_usage: float | None = None,
    running_loras: Sequence[str] = (),
    waiting_loras: Sequence[str] = (),
    max_loras: int | None = None,
    scraped: bool | None = None,
) -> Candidate:
    """A candidate that knows only what is said; metrics exist if any is given or `scraped` says so."""
    said = any(value is not None for value in (running, waiting, kv_usage, max_loras))
    known = scraped if scraped is not None else said or bool(running_loras) or bool(waiting_loras)
    metrics = EndpointMetrics(
        taken_at=NOW - 1.0,
        running=running,
        waiting=waiting,
        kv_usage=kv_usage,
        running_loras=frozenset(running_loras),
        waiting_loras=frozenset(waiting_loras),
        max_loras=max_loras,
    )
    return Candidate(
        EndpointState(
            endpoint=Endpoint(id=id_, url=f"http://{id_}", role=role, labels=labels or {}),
            metrics=metrics if known else None,
            block_size=BLOCK,
        ),
        Inflight(inflight, prefill_tokens, tokens),
        EndpointMatch(matched, matched if device is None else device),
        1.0 if known else None,
    )


def prompt(blocks: int = 0, *, tail: int = 0, seed: int = 1, token_count: int | None = None) -> TokenizedPrompt:
    """A prompt of `blocks` full blocks and `tail` tokens; equal seeds share every block."""
    count = blocks * BLOCK + tail
    return TokenizedPrompt(
        token_ids=range(count),
        source=TokenSource.LOCAL,
        token_count=count if token_count is None else token_count,
        block_size=BLOCK if blocks else 0,
        block_hashes=tuple((seed * 0x9E3779B97F4A7C15 + i * 0xBF58476D1CE4E5B9) % 2**64 for i in range(blocks)),
    )


def request(
    *, api: Api = Api.CHAT, model: str | None = "m", routing_headers: Mapping[str, str] | None = None
) -> InferenceRequest:
    return InferenceRequest(
        request_id="r",
        api=api,
        path="/v1/chat/completions",
        body=b"{}",
        headers=(),
        routing_headers=routing_headers or {},
        model=model,
    )


def context(
    prompt_: TokenizedPrompt | None = None,
    *,
    request_: InferenceRequest | None = None,
    leg: Leg = Leg.DECODE,
    seed: int = 0,
    peer: Candidate | None = None,
) -> Context:
    return Context(
        request=request_ or request(),
        prompt=prompt_ or prompt(),
        leg=leg,
        now=NOW,
        rng=random.Random(seed),
        peer=peer,
    )


def ids(candidates: Sequence[Candidate]) -> list[str]:
    return [c.id for c in candidates]
