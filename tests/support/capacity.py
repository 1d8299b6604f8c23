"""A first-come first-served engine for tests of the engine model, told in the events of the director."""

from __future__ import annotations

import random

import msgspec

from router.capacity.engine_model import EngineModels
from router.core import (
    NO_INFLIGHT,
    Api,
    Candidate,
    Endpoint,
    EndpointMatch,
    EndpointState,
    InferenceRequest,
    Leg,
    TokenizedPrompt,
    TokenSource,
)
from router.observability.events import Dispatched, FirstToken, LegFailed, Outcome
from tests.support.observations import ended

BLOCK = 512
CAPACITY = 900 * BLOCK


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    rate: float = 9000.0
    pair_s: float = 1.6e-9
    step_s: float = 0.012
    seq_s: float = 5e-5

    def prefill_s(self, tokens: int, context: int) -> float:
        return tokens / self.rate + self.pair_s * tokens * (context + tokens / 2)


class Story:
    """Says to the models what the director would say of requests to endpoints."""

    def __init__(self, models: EngineModels, clock: Clock) -> None:
        self.models = models
        self.clock = clock
        self._number = 0
        self.ids: dict[str, InferenceRequest] = {}

    def dispatch(
        self,
        endpoint: str = "a",
        *,
        tokens: int = 4096,
        cached: int = 0,
        leg: Leg = Leg.DECODE,
        prefills: bool = True,
        streams: bool = True,
        output: int | None = None,
        request_id: str | None = None,
        document: int | None = None,
    ) -> str:
        """Prompts of one `document` are the same; without, no two share anything."""
        self._number += 1
        name = request_id or f"r{self._number}"
        first = self._number * 10_000 if document is None else -(document + 1) * 10_000
        blocks = tuple(range(first, first + tokens // BLOCK))
        self.ids[name] = InferenceRequest(request_id=name, api=Api.CHAT, path="/", arrived_at=self.clock())
        self.models.on_dispatch(
            Dispatched(
                request_id=name,
                leg=leg,
                endpoint_id=endpoint,
                attempt=0,
                candidate=candidate(self.models, endpoint, cached // BLOCK),
                prompt=TokenizedPrompt(
                    token_ids=(),
                    source=TokenSource.LOCAL,
                    token_count=tokens,
                    block_size=BLOCK,
                    block_hashes=blocks,
                ),
                prefills=prefills,
                streams=streams,
                output_tokens=output,
            )
        )
        return name

    def first_token(self, name: str, endpoint: str = "a", leg: Leg = Leg.DECODE) -> None:
        self.models.on_first_token(
            FirstToken(request_id=name, endpoint_id=endpoint, ttft_s=0.0, since_dispatch_s=0.0, leg=leg)
        )

    def end(self, name: str, *, output: int | None = 10, outcome: Outcome = Outcome.OK) -> None:
        self.models.on_end(ended(request=self.ids[name], output_tokens=output, outcome=outcome))

    def failed(self, name: str, endpoint: str = "a") -> None:
        self.models.on_leg_failed(LegFailed(request_id=name, leg=Leg.DECODE, endpoint_id=endpoint, kind="refused"))

    def serve(self, truth: Truth, rng: random.Random, *, requests: int, endpoint: str = "a") -> None:
        """Requests one after the other, some of them queued behind others, each answered by a few steps."""
        while requests > 0:
            batch = [(rng.randint(1, 30) * BLOCK, rng.randint(0, 20) * BLOCK) for _ in range(rng.randint(1, 3))]
            names = [self.dispatch(endpoint, tokens=new + old, cached=old) for new, old in batch]
            decoding = 0
            for name, (new, old) in zip(names, batch, strict=True):
                steps = -(-new // (8192 - decoding)) if decoding else 0
                self.clock.now += truth.prefill_s(new, old) + steps * (truth.step_s + truth.seq_s * decoding)
                self.first_token(name, endpoint)
                decoding += 1
            self.clock.now += 20 * (truth.step_s + truth.seq_s * decoding)
            for name in names:
                self.end(name, output=21)
            self.clock.now += rng.random()
            requests -= len(batch)


def candidate(models: EngineModels, endpoint: str, matched: int = 0) -> Candidate:
    state = EndpointState(
        endpoint=Endpoint(id=endpoint, url=f"http://{endpoint}"), block_size=BLOCK, num_blocks=CAPACITY // BLOCK
    )
    return Candidate(state, NO_INFLIGHT, EndpointMatch(matched, matched), None, models.estimate(endpoint))
