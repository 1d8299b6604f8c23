"""The last decisions are kept with what was predicted and what came of them, and no more than asked for."""

from router.core import Decision, Leg, TokenizedPrompt, TokenSource
from router.observability.decisions import RecentDecisions
from router.observability.events import FirstToken
from tests.support.observations import ended
from tests.support.scheduling import candidate, prompt, request


def decided(log: RecentDecisions, name: str, asked: TokenizedPrompt) -> None:
    log.on_decision(
        type(request())(request_id=name, api=request().api, path="/"),
        asked,
        Decision(decode=(candidate("a", matched=3),), prefill=(candidate("p"),), reason="pd"),
    )


def test_a_decision_is_shown_with_prediction_and_outcome() -> None:
    log = RecentDecisions(lambda: 7.0)
    decided(log, "r1", prompt(4))
    for leg, seconds in ((Leg.PREFILL, 0.1), (Leg.DECODE, 0.4)):
        log.on_first_token(
            FirstToken(request_id="r1", endpoint_id="b", ttft_s=0.5, since_dispatch_s=seconds, predicted_s=0.3, leg=leg)
        )
    log.on_end(ended(request=type(request())(request_id="r1", api=request().api, path="/")))
    [entry] = log.recent()
    assert entry == {
        "request_id": "r1",
        "age_s": 0.0,
        "reason": "pd",
        "decode": "b",
        "prefill": "p",
        "candidates": 1,
        "prompt_tokens": 64,
        "matched_tokens": 48,
        "predicted_first_token_s": 0.3,
        "first_token_s": 0.4,
        "ttft_s": 0.5,
        "outcome": "ok",
    }


def test_only_the_newest_are_kept_newest_first() -> None:
    log = RecentDecisions(lambda: 0.0, most=3)
    for number in range(10):
        decided(log, f"r{number}", prompt(1))
    assert [entry["request_id"] for entry in log.recent()] == ["r9", "r8", "r7"]


def test_an_estimated_prompt_without_blocks_is_shown_too() -> None:
    log = RecentDecisions(lambda: 0.0)
    decided(log, "r", TokenizedPrompt(token_ids=(), source=TokenSource.NONE, token_count=0))
    assert log.recent()[0]["matched_tokens"] == 0
