"""The access line: one log record a request, with no prompt, key or engine body in it."""

from __future__ import annotations

import logging

from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.observability.events import Answered, Dispatched, Ended, FirstToken, LegFailed

logger = logging.getLogger("kvrouter.access")


_LINE = "%s %s %s %s endpoint=%s prefill=%s reason=%s prompt=%s matched=%s cached=%s out=%s ttft=%s e2e=%.4f"
_UNKNOWN = 8
"""Values of a line that only a journey gives."""


class AccessLog:
    """Implements `router.observability.events.Observer` and `AnswerObserver`."""

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None: ...

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None:
        what = f"{event.kind} ({event.detail})" if event.detail else event.kind
        logger.warning("%s %s leg failed on %s: %s", event.request_id, event.leg.value, event.endpoint_id, what)

    def on_end(self, event: Ended) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        logger.info(
            _LINE,
            event.request.request_id,
            event.api.value,
            event.status,
            event.outcome.value,
            event.endpoint_id,
            event.prefill_endpoint_id,
            event.reason,
            event.prompt_tokens,
            event.matched_tokens,
            event.cached_tokens,
            event.output_tokens,
            None if event.ttft_s is None else f"{event.ttft_s:.4f}",
            event.e2e_s,
        )

    def on_answered(self, event: Answered) -> None:
        logger.info(
            _LINE, event.request_id, event.api, event.status, event.outcome.value, *(None,) * _UNKNOWN, event.e2e_s
        )
