"""Trip: the notes one request gathers on its way, and what is reported of it at its end. PURE.

Mutable on purpose and owned by one request: the director writes, nobody else keeps it. What leaves is `Ended`.
"""

from __future__ import annotations

from router.core import Decision, Endpoint, InferenceRequest, TokenizedPrompt, TokenSource
from router.observability.events import Ended, Outcome
from router.wire.sse import Scanner


class Trip:
    __slots__ = (
        "attempts",
        "cached_tokens",
        "continued",
        "decide_s",
        "decision",
        "doubted",
        "endpoint_id",
        "first_token_at",
        "last_byte_at",
        "matched_tokens",
        "outcome",
        "output_tokens",
        "prefill_endpoint_id",
        "prefill_s",
        "prompt",
        "prompt_tokens",
        "queue_s",
        "request",
        "scanner",
        "status",
        "tokenize_s",
    )

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.status: int | None = None
        self.prompt: TokenizedPrompt | None = None
        self.decision: Decision | None = None
        self.endpoint_id: str | None = None
        self.prefill_endpoint_id: str | None = None
        self.attempts = 0
        self.doubted: Endpoint | None = None
        """It answered 500, as it did to others before, and another's answer will tell whose fault that was."""
        self.continued = 0
        """Times that another engine went on with the answer."""
        self.matched_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.scanner: Scanner | None = None
        """Of the answer, once there is one."""
        self.queue_s: float | None = None
        self.tokenize_s: float | None = None
        self.decide_s: float | None = None
        self.prefill_s: float | None = None
        self.first_token_at: float | None = None
        self.last_byte_at: float | None = None

    def served_tokens(self) -> int:
        """Prompt tokens that engines had to compute, and output so far: as they reported, else as was expected."""
        if self.prompt is None or not self.attempts:
            return 0
        output = self.output_tokens or (0 if self.scanner is None else self.scanner.output_chunks)
        if self.prompt_tokens is not None and self.cached_tokens is not None:
            return self.prompt_tokens - self.cached_tokens + output
        return max(self.prompt.token_count - (self.matched_tokens or 0), 0) + output

    def ended(self, now: float) -> Ended:
        request, prompt = self.request, self.prompt
        itl_s = None
        if self.first_token_at is not None and self.last_byte_at is not None and (self.output_tokens or 0) > 1:
            itl_s = (self.last_byte_at - self.first_token_at) / ((self.output_tokens or 0) - 1)
        prompt_tokens = self.prompt_tokens
        if (
            prompt_tokens is None
            and prompt is not None
            and prompt.source not in (TokenSource.NONE, TokenSource.ESTIMATE)
        ):
            prompt_tokens = prompt.token_count
        return Ended(
            request=request,
            outcome=self.outcome or Outcome.CLIENT_GONE,
            status=self.status,
            api=request.api,
            reason=self.decision.reason if self.decision is not None else None,
            endpoint_id=self.endpoint_id,
            prefill_endpoint_id=self.prefill_endpoint_id,
            attempts=self.attempts,
            continued=self.continued,
            token_source=prompt.source if prompt is not None else TokenSource.NONE,
            prompt_tokens=prompt_tokens,
            matched_tokens=self.matched_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            queue_s=self.queue_s,
            tokenize_s=self.tokenize_s,
            decide_s=self.decide_s,
            prefill_s=self.prefill_s,
            ttft_s=None if self.first_token_at is None else self.first_token_at - request.arrived_at,
            itl_s=itl_s,
            e2e_s=now - request.arrived_at,
        )
