"""Fakes of the director's ports: a pool, an index, a tokenizer and engines that do as a script says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kvindex.redis_board import Load
from router.core import (
    Api,
    Decision,
    Endpoint,
    EndpointMatch,
    EndpointState,
    Health,
    InferenceRequest,
    ModelCard,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.director import Director
from router.eligible import Eligible
from router.flowcontrol.admission import Admission
from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.objectives import Objectives
from router.flowcontrol.policy import FlowPolicy
from router.flowcontrol.saturation import Detector, Unlimited
from router.gate import Gate
from router.holders import ResponseHolders
from router.inflight import InflightTracker
from router.legs import Legs, LegSettings
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed, Observers
from router.observability.flow import FlowObserver, Unobserved
from router.plugins.builtin import builtin_registry
from router.ports import Reliance, UpstreamError
from router.retry_budget import RetryBudget
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.sharing import Sharing
from router.wire.openai import parse_request

BLOCK = 16
HAND_OFF = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_host": "h", "remote_port": 1}
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")
SPOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "t"}, "finish_reason": null}]}\n\n'
"""A piece of a stream with content in it."""


class Sent:
    """One request as an engine got it."""

    def __init__(self, endpoint: Endpoint, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.endpoint = endpoint
        self.path = path
        self.headers = dict(headers)
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FakeResponse:
    """`pieces`: body chunks in order, an exception to break off, or an awaitable to wait for."""

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]], pieces: Sequence[Any]) -> None:
        self.status = status
        self.headers = tuple(headers)
        self._pieces = list(pieces)
        self.closed = False

    def read_nowait(self) -> bytes:
        return b""

    async def read(self) -> bytes:
        while self._pieces:
            piece = self._pieces.pop(0)
            if isinstance(piece, UpstreamError):
                raise piece
            if isinstance(piece, bytes):
                return piece
            await piece
        return b""

    async def close(self) -> None:
        self.closed = True


def stream(*texts: str, done: bool = True) -> FakeResponse:
    events = [
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}).encode()
        + b"\n\n"
        for text in texts
    ]
    return FakeResponse(200, [SSE], [*events, *([b"data: [DONE]\n\n"] if done else [])])


def answer(value: Any, status: int = 200) -> FakeResponse:
    return FakeResponse(status, [JSON], [json.dumps(value).encode()])


def prefilled() -> FakeResponse:
    return answer({"id": "x", "kv_transfer_params": HAND_OFF})


Engine = Callable[[Sent], "FakeResponse | UpstreamError | Awaitable[FakeResponse]"]


class FakeUpstream:
    """Each endpoint's engine is a function from what it was sent to its answer, or to the error of reaching it."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self.sent: list[Sent] = []
        self.responses: list[FakeResponse] = []

    async def open(
        self,
        endpoint: Endpoint,
        method: bytes,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        first_byte_timeout_s: float | None = None,
        relies_on: Reliance | None = None,
    ) -> FakeResponse:
        sent = Sent(endpoint, path, list(headers), body)
        self.sent.append(sent)
        outcome = self._engines[endpoint.id](sent)
        if isinstance(outcome, UpstreamError):
            raise outcome
        response = outcome if isinstance(outcome, FakeResponse) else await outcome
        self.responses.append(response)
        return response

    def sent_to(self, endpoint_id: str) -> list[Sent]:
        return [sent for sent in self.sent if sent.endpoint.id == endpoint_id]


class FakePool:
    def __init__(self, states: Sequence[EndpointState]) -> None:
        self.states = list(states)
        self.failed: list[str] = []
        self.errors: list[str] = []
        self.brink: set[str] = set()
        self.excused: list[str] = []
        self.succeeded: list[str] = []
        self.refreshes = 0

    def snapshot(self) -> Sequence[EndpointState]:
        return self.states

    def report_failure(self, endpoint: Endpoint) -> None:
        self.failed.append(endpoint.id)

    def report_error(self, endpoint: Endpoint) -> None:
        self.errors.append(endpoint.id)

    def on_brink(self, endpoint: Endpoint) -> bool:
        return endpoint.id in self.brink

    def excuse(self, endpoint: Endpoint) -> None:
        self.excused.append(endpoint.id)

    def report_success(self, endpoint: Endpoint) -> None:
        self.succeeded.append(endpoint.id)

    def usable(self, endpoint_id: str) -> bool:
        return any(
            state.endpoint.id == endpoint_id and state.health in (Health.HEALTHY, Health.UNKNOWN)
            for state in self.states
        )

    async def refresh_models(self) -> None:
        self.refreshes += 1


class FakeIndex:
    def __init__(self, held: Mapping[str, int] | None = None) -> None:
        self.held = held or {}
        self.speculated: list[str] = []

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, EndpointMatch]:
        return {
            name: EndpointMatch(min(blocks, len(block_hashes)), min(blocks, len(block_hashes)))
            for name, blocks in self.held.items()
        }

    def speculate(self, endpoint_id: str, block_hashes: Sequence[int]) -> None:
        self.speculated.append(endpoint_id)


class FakeTokenization:
    """A token a byte of the body."""

    def __init__(self, wait: Awaitable[object] | None = None) -> None:
        self._wait = wait

    async def tokenize(self, request: InferenceRequest, candidates: Sequence[EndpointState]) -> TokenizedPrompt:
        if self._wait is not None:
            await self._wait
        count = len(request.body)
        return TokenizedPrompt(
            token_ids=(),
            source=TokenSource.LOCAL,
            token_count=count,
            block_size=BLOCK,
            block_hashes=tuple(range(count // BLOCK)),
        )


class Recorder:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.dispatched: list[Dispatched] = []
        self.failed: list[LegFailed] = []
        self.first_tokens: list[FirstToken] = []
        self.ended: list[Ended] = []

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        self.decisions.append(decision)

    def on_dispatch(self, event: Dispatched) -> None:
        self.dispatched.append(event)

    def on_leg_failed(self, event: LegFailed) -> None:
        self.failed.append(event)

    def on_first_token(self, event: FirstToken) -> None:
        self.first_tokens.append(event)

    def on_end(self, event: Ended) -> None:
        self.ended.append(event)


class FakeReply:
    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.ended = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, dict(headers)

    async def send(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    async def end(self, chunk: bytes = b"") -> None:
        self.chunks.append(chunk)
        self.ended = True

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def endpoint(
    name: str,
    role: Role = Role.BOTH,
    *,
    models: Sequence[str] = (),
    health: Health = Health.HEALTHY,
    **known: Any,
) -> EndpointState:
    return EndpointState(
        endpoint=Endpoint(id=name, url=f"http://{name}", role=role, **known),
        health=health,
        models={model: ModelCard(id=model) for model in models},
    )


LONG_CHAT: Mapping[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "hello " * 20}],
}


def request(body: Mapping[str, Any] = LONG_CHAT, *, api: Api = Api.CHAT, **fields: Any) -> InferenceRequest:
    raw = json.dumps(body).encode()
    parsed = parse_request(api, "/x", raw)
    return InferenceRequest(
        request_id="r1",
        api=api,
        path="/v1/chat/completions",
        body=raw,
        model=parsed.model,
        stream=parsed.stream,
        n=parsed.n,
        max_tokens=parsed.max_tokens,
        include_usage=parsed.include_usage,
        fields=parsed.fields,
        **fields,
    )


class World:
    """A director over fakes. Engines by endpoint id; endpoints without one are not to be called."""

    def __init__(
        self,
        states: Sequence[EndpointState],
        engines: Mapping[str, Engine],
        *,
        held: Mapping[str, int] | None = None,
        decider: str = "always-disagg-pd-decider",
        limit: int = 100,
        tokenization: FakeTokenization | None = None,
        budget: RetryBudget | None = None,
        detector: Detector | None = None,
        limits: QueueLimits | None = None,
        turns: Turns | None = None,
        objectives: Objectives | None = None,
        flow: FlowObserver | None = None,
        holdback: int = 0,
        **leg_settings: Any,
    ) -> None:
        self.pool = FakePool(states)
        self.upstream = FakeUpstream(engines)
        self.index = FakeIndex(held)
        self.recorder = Recorder()
        self.inflight = InflightTracker()
        self.others: Load = {}
        """Other routers' requests by endpoint; replaced whole."""
        self.holders = ResponseHolders()
        clock = asyncio.get_running_loop().time
        rng = random.Random(1)
        self.notes: Mapping[str, bytes] = {}
        """Other routers' notes of their queues; replaced whole."""
        size = Limits(100, 1_000_000)
        shared = Sharing(lambda: self.others)
        self.gate = Gate(
            policy=FlowPolicy(
                limits=limits or QueueLimits(total=size, each_class=size),
                detector=detector or Unlimited(),
                objectives=objectives or Objectives({}, max_wait_s=30.0),
                turns=turns or Turns(),
                holdback=holdback,
            ),
            inflight=self.inflight,
            shared=shared,
            observer=flow or Unobserved(),
            clock=clock,
            notes=lambda: self.notes,
        )
        observer = Observers(self.gate, self.recorder)
        legs = Legs(
            upstream=self.upstream,
            pool=self.pool,
            index=self.index,
            inflight=self.inflight,
            observer=observer,
            holders=self.holders,
            clock=clock,
            rng=rng,
            budget=budget or RetryBudget(ratio=1.0, reserve=100),
            settings=LegSettings(**leg_settings),
        )
        self.director = Director(
            eligible=Eligible(
                pool=self.pool,
                index=self.index,
                inflight=self.inflight,
                shared=shared,
                holders=self.holders,
                clock=clock,
            ),
            refresh_models=self.pool.refresh_models,
            tokenization=tokenization or FakeTokenization(),
            scheduler=build_scheduler(SchedulingSettings(decider=decider), builtin_registry()),
            legs=legs,
            gate=self.gate,
            admission=Admission(limit),
            holders=self.holders,
            observer=observer,
            clock=clock,
            rng=rng,
        )

    async def serve(self, asked: InferenceRequest | None = None) -> FakeReply:
        reply = FakeReply()
        arrived = msgspec.structs.replace(asked or request(), arrived_at=asyncio.get_running_loop().time())
        await self.director.serve(arrived, reply)
        return reply
