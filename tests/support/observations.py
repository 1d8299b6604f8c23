"""Factories of what the director reports."""

from __future__ import annotations

from typing import Any

from router.core import Api, TokenSource
from router.observability.events import Ended, Outcome
from tests.support.journey import request


def ended(**changed: Any) -> Ended:
    values: dict[str, Any] = {
        "request": request(),
        "outcome": Outcome.OK,
        "status": 200,
        "api": Api.CHAT,
        "reason": "aggregated",
        "endpoint_id": "a",
        "prefill_endpoint_id": None,
        "attempts": 1,
        "token_source": TokenSource.LOCAL,
        "prompt_tokens": 100,
        "matched_tokens": 64,
        "cached_tokens": 48,
        "output_tokens": 10,
        "queue_s": 0.0002,
        "tokenize_s": 0.001,
        "decide_s": 0.0001,
        "prefill_s": None,
        "ttft_s": 0.2,
        "itl_s": 0.01,
        "e2e_s": 0.4,
    }
    return Ended(**(values | changed))
