"""What is observed of a request, as frozen values, and the protocol of those who listen. PURE.

Observations flow one way: the director reports, observers (metrics, access log, later the engine model) take note.
Nothing calls back up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from router.core import Api, Candidate, Decision, InferenceRequest, Leg, TokenizedPrompt, TokenSource


class Outcome(StrEnum):
    """How a request ended; a metric label."""

    OK = "ok"
    ENGINE_ERROR = "engine_error"
    """The engine answered 5xx, 3xx or without content, or reported an error or an abort nobody asked for inside its
    stream."""
    CLIENT_ERROR = "client_error"
    """The engine answered 4xx, or the router refused the request with one."""
    CLIENT_GONE = "client_gone"
    REFUSED = "refused"
    """429 or 503 of the router's own."""
    UPSTREAM_ERROR = "upstream_error"
    """No endpoint could be reached, or all failed before the first byte."""
    CUT = "cut"
    """The answer broke off after its first byte, or the router ended before it did."""
    ROUTER_ERROR = "router_error"
    """A mistake of the router's own; its log tells which."""


def of_refusal(status: int) -> Outcome:
    """How a request ended that the router answered with an error of its own."""
    if status in (429, 503):
        return Outcome.REFUSED
    if status == 500:
        return Outcome.ROUTER_ERROR
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.UPSTREAM_ERROR


EXPLAIN = "explain"
"""In place of an API's name: what would be decided for a request was asked."""


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """One leg is about to be sent."""

    request_id: str
    leg: Leg
    endpoint_id: str
    attempt: int
    """0 for the chosen endpoint, then 1, 2, ... for its fallbacks."""
    candidate: Candidate | None = None
    """The endpoint as it was seen when it was chosen."""
    prompt: TokenizedPrompt | None = None
    prefills: bool = True
    """The prompt is computed here; False: its KV is handed over."""
    output_tokens: int | None = None
    """Bound of the answer, where the request gives one."""
    streams: bool = True
    """The first token will be seen when it comes, and not only the end."""


class LegFailed(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a leg did not lead to an answer for the client."""

    request_id: str
    leg: Leg
    endpoint_id: str
    kind: str
    """refused | broken | silent | abandoned | orphaned | abort | empty | error | status | hand-off: a metric label."""
    detail: str = ""
    """What it was, in a few safe words for people."""


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The first token of a leg: of a prefill leg its whole answer, which holds no other."""

    request_id: str
    endpoint_id: str
    ttft_s: float
    """Since the request arrived."""
    since_dispatch_s: float
    leg: Leg = Leg.DECODE
    predicted_s: float | None = None
    """What `since_dispatch_s` was expected to be at the dispatch; None without an engine model."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of a request, once, however it ended. Times in seconds; None where the request never got there."""

    request: InferenceRequest
    outcome: Outcome
    status: int | None
    """What the client was sent, None if nothing."""
    api: Api
    reason: str | None
    """Of the decision."""
    endpoint_id: str | None
    prefill_endpoint_id: str | None
    attempts: int
    token_source: TokenSource
    prompt_tokens: int | None
    matched_tokens: int | None
    """Predicted by the index for the endpoint that computed the prompt."""
    cached_tokens: int | None
    """As the engine reported, where it did."""
    output_tokens: int | None
    queue_s: float | None
    """From the head's arrival to the start of work: reading the body, and waiting to be admitted."""
    tokenize_s: float | None
    decide_s: float | None
    prefill_s: float | None
    ttft_s: float | None
    itl_s: float | None
    """Mean time between tokens after the first."""
    e2e_s: float
    continued: int = 0
    """Times that another engine went on with the answer after it had broken off."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request that no journey tells of: it was answered before one began, or needed none."""

    request_id: str
    api: str
    """An API's name, or `EXPLAIN`."""
    outcome: Outcome
    status: int | None
    """What the client was sent, None if nothing."""
    e2e_s: float


class AnswerObserver(Protocol):
    def on_answered(self, event: Answered) -> None: ...


class Observer(Protocol):
    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None: ...

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_end(self, event: Ended) -> None: ...


class Observers:
    """Tells several observers, in order."""

    __slots__ = ("_observers",)

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        for observer in self._observers:
            observer.on_decision(request, prompt, decision)

    def on_dispatch(self, event: Dispatched) -> None:
        for observer in self._observers:
            observer.on_dispatch(event)

    def on_leg_failed(self, event: LegFailed) -> None:
        for observer in self._observers:
            observer.on_leg_failed(event)

    def on_first_token(self, event: FirstToken) -> None:
        for observer in self._observers:
            observer.on_first_token(event)

    def on_end(self, event: Ended) -> None:
        for observer in self._observers:
            observer.on_end(event)
