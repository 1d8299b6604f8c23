"""The last decisions are kept with what was predicted and what came of them, and no more than asked for."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from router.core import Candidate, Decision, InferenceRequest, Leg, TokenizedPrompt, TokenSource
from router.observability.decisions import RecentDecisions
from router.observability.events import Dispatched, FirstToken
from router.scheduling.cost import predicted_s
from tests.support.observations import ended
from tests.support.scheduling import candidate, prompt, request
from tests.unit.router.plugins.scorers.test_predicted_latency import FAST


def named(name: str, *, stream: bool = True) -> InferenceRequest:
    return msgspec.structs.replace(request(), request_id=name, stream=stream)


def known(id_: str, *, matched: int = 0) -> Candidate:
    plain = candidate(id_, matched=matched)
    return Candidate(plain.state, plain.inflight, plain.match, None, FAST)


def decided(log: RecentDecisions, name: str, asked: TokenizedPrompt) -> None:
    decode, prefill = known("a", matched=3), known("p")
    log.on_decision(named(name), asked, Decision(decode=(decode,), prefill=(prefill,), reason="pd"))


def dispatched(leg: Leg, endpoint: str, *, prefills: bool = True) -> Dispatched:
    return Dispatched(
        request_id="r1",
        leg=leg,
        endpoint_id=endpoint,
        attempt=0,
        candidate=known(endpoint),
        prompt=prompt(4),
        prefills=prefills,
    )


def everything(log: RecentDecisions) -> None:
    """A streamed request with both legs, to its end."""
    decided(log, "r1", prompt(4))
    log.on_dispatch(dispatched(Leg.PREFILL, "p"))
    log.on_dispatch(dispatched(Leg.DECODE, "b", prefills=False))
    for leg, seconds in ((Leg.PREFILL, 0.1), (Leg.DECODE, 0.4)):
        log.on_first_token(FirstToken(request_id="r1", endpoint_id="b", ttft_s=0.5, since_dispatch_s=seconds, leg=leg))
    log.on_end(ended(request=named("r1"), e2e_s=0.9))


def test_a_decision_is_shown_with_prediction_and_outcome() -> None:
    log = RecentDecisions(lambda: 7.0)
    everything(log)
    [entry] = log.recent()
    ahead = predicted_s(prompt(4), known("p"), 7.0)
    handed = predicted_s(prompt(4), known("a", matched=3), 7.0, prefills=False)
    assert ahead is not None
    assert handed is not None
    assert entry.pop("predicted_ttft_s") == pytest.approx(ahead + handed, abs=1e-6)
    there = predicted_s(prompt(4), known("b"), 7.0, prefills=False)
    assert entry.pop("predicted_first_token_s") == pytest.approx(there, abs=1e-6)
    assert entry == {
        "request_id": "r1",
        "age_s": 0.0,
        "reason": "pd",
        "decode": "b",
        "prefill": "p",
        "candidates": 1,
        "prompt_tokens": 64,
        "matched_tokens": 0,
        "streamed": True,
        "prefill_s": 0.1,
        "first_token_s": 0.4,
        "ttft_s": 0.5,
        "e2e_s": 0.9,
        "outcome": "ok",
    }


def test_the_documentation_has_every_key() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("### The last decisions")[2].partition("\n## ")[0]
    keys = {
        key for line in table.splitlines() for key in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }
    log = RecentDecisions(lambda: 7.0)
    everything(log)
    assert keys == set(log.recent()[0])


def test_what_is_not_known_has_no_key() -> None:
    log = RecentDecisions(lambda: 7.0)
    log.on_decision(named("r1", stream=False), prompt(4), Decision(decode=(candidate("a"),), reason="aggregated"))
    (begun,) = log.recent()
    assert begun.keys().isdisjoint({"prefill", "predicted_ttft_s", "ttft_s", "first_token_s", "e2e_s", "outcome"})
    log.on_end(ended(request=named("r1"), ttft_s=None, e2e_s=0.9))
    (entry,) = log.recent()
    assert (entry["streamed"], entry["e2e_s"], entry["outcome"]) == (False, 0.9, "ok")
    assert "ttft_s" not in entry
    assert None not in entry.values()


def test_only_the_newest_are_kept_newest_first() -> None:
    log = RecentDecisions(lambda: 0.0, most=3)
    for number in range(10):
        decided(log, f"r{number}", prompt(1))
    assert [entry["request_id"] for entry in log.recent()] == ["r9", "r8", "r7"]


def test_an_estimated_prompt_without_blocks_is_shown_too() -> None:
    log = RecentDecisions(lambda: 0.0)
    decided(log, "r", TokenizedPrompt(token_ids=(), source=TokenSource.NONE, token_count=0))
    assert log.recent()[0]["matched_tokens"] == 0
