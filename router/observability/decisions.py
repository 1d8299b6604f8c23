"""RecentDecisions: the last decisions with what was predicted and what came of them. No prompts.

Implements `router.observability.events.Observer`. What is not known, or never will be, has no key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from router.core import Decision, InferenceRequest, Leg, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.scheduling.cost import predicted_s
from router.scheduling.explanation import expected_ttft_s

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
        entries, name, now = self._entries, request.request_id[:_ID], self._clock()
        computes = (decision.prefill or decision.decode)[0]
        entries.pop(name, None)
        entries[name] = {
            "at": now,
            "reason": decision.reason,
            "decode": decision.decode[0].id,
            **({"prefill": decision.prefill[0].id} if decision.prefill else {}),
            "candidates": len(decision.decode),
            "prompt_tokens": prompt.token_count,
            "matched_tokens": min(computes.match.blocks * prompt.block_size, prompt.token_count),
            "streamed": request.stream,
            **_told("predicted_ttft_s", expected_ttft_s(prompt, decision, now)),
        }
        if len(entries) > self._most:
            entries.popitem(last=False)

    def on_dispatch(self, event: Dispatched) -> None:
        entry = self._entries.get(event.request_id)
        if entry is None:
            return
        entry[event.leg.value] = event.endpoint_id
        if event.leg is Leg.DECODE and event.candidate is not None:
            predicted = predicted_s(event.prompt, event.candidate, self._clock(), prefills=event.prefills)
            entry.pop("predicted_first_token_s", None)
            entry |= _told("predicted_first_token_s", predicted)

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None:
        entry = self._entries.get(event.request_id)
        if entry is None:
            return
        if event.leg is Leg.PREFILL:
            entry["prefill_s"] = round(event.since_dispatch_s, 6)
        else:
            entry["first_token_s"] = round(event.since_dispatch_s, 6)
            entry["ttft_s"] = round(event.ttft_s, 6)

    def on_end(self, event: Ended) -> None:
        entry = self._entries.get(event.request.request_id)
        if entry is not None:
            entry["outcome"] = event.outcome.value
            entry["e2e_s"] = round(event.e2e_s, 6)


def _told(name: str, seconds: float | None) -> dict[str, float]:
    return {} if seconds is None else {name: round(seconds, 6)}
