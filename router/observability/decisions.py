"""RecentDecisions: the last decisions with what was predicted and what came of them. No prompts.

Implements `router.observability.events.Observer`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from router.core import Decision, InferenceRequest, Leg, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed

_ID = 128


class RecentDecisions:
    """Keeps `most` of them. `clock` gives the seconds that ages are told in."""

    def __init__(self, clock: Callable[[], float], most: int = 256) -> None:
        self._clock = clock
        self._most = most
        self._entries: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def recent(self) -> list[dict[str, Any]]:
        """Newest first."""
        now = self._clock()
        return [
            {"request_id": name, "age_s": round(now - entry["at"], 3)}
            | {key: value for key, value in entry.items() if key != "at"}
            for name, entry in reversed(self._entries.items())
        ]

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        entries, name = self._entries, request.request_id[:_ID]
        entries.pop(name, None)
        entries[name] = {
            "at": self._clock(),
            "reason": decision.reason,
            "decode": decision.decode[0].id,
            "prefill": decision.prefill[0].id if decision.prefill else None,
            "candidates": len(decision.decode),
            "prompt_tokens": prompt.token_count,
            "matched_tokens": min(decision.decode[0].match.blocks * prompt.block_size, prompt.token_count),
            "predicted_first_token_s": None,
            "first_token_s": None,
            "ttft_s": None,
            "outcome": None,
        }
        if len(entries) > self._most:
            entries.popitem(last=False)

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None:
        entry = self._entries.get(event.request_id)
        if entry is not None and event.leg is Leg.DECODE:
            entry["decode"] = event.endpoint_id
            entry["predicted_first_token_s"] = event.predicted_s
            entry["first_token_s"] = event.since_dispatch_s
            entry["ttft_s"] = event.ttft_s

    def on_end(self, event: Ended) -> None:
        entry = self._entries.get(event.request.request_id)
        if entry is not None:
            entry["outcome"] = event.outcome.value
