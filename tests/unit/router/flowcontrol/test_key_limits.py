"""What an API key may ask for: refused with the time to come back, charged for what it took, and given all back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Api, Caller, Decision, InferenceRequest, TokenizedPrompt, TokenSource
from router.errors import RateLimited
from router.flowcontrol.key_limits import KeyLimits, Rate
from router.observability.events import Ended
from tests.support.observations import ended


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock | None = None, **rates: Rate) -> KeyLimits:
    return KeyLimits(rates, clock or Clock())


def refusal(limited: KeyLimits, key: str = "k") -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        limited.enter(key)
    return caught.value


def request(key: str | None = "k") -> InferenceRequest:
    return InferenceRequest(request_id="r", api=Api.CHAT, path="/", caller=Caller(key=key))


def decided(limited: KeyLimits, asked: InferenceRequest, tokens: int) -> None:
    prompt = TokenizedPrompt(token_ids=(), source=TokenSource.LOCAL, token_count=tokens)
    limited.on_decision(asked, prompt, Decision(decode=()))


def over(asked: InferenceRequest, **what: Any) -> Ended:
    return ended(request=asked, **what)


def test_who_has_no_rate_is_not_counted() -> None:
    limited = limits(k=Rate())
    for _ in range(1000):
        assert limited.enter("k") == []
        assert limited.enter("other") == []
    assert not limited.limited
    assert limited.active() == {}


def test_requests_a_minute_come_in_bursts_and_then_at_their_rate() -> None:
    clock = Clock()
    limited = limits(clock, k=Rate(requests_per_min=60, burst_s=3))
    for _ in range(3):
        limited.enter("k")
    error = refusal(limited)
    assert (error.status, error.retry_after_s, error.code) == (429, 1, "rate_limit_exceeded")
    clock.now += 1
    limited.enter("k")
    refusal(limited)
    assert limited.refused == {"requests": 2}


def test_a_slow_rate_tells_the_whole_wait() -> None:
    limited = limits(k=Rate(requests_per_min=2))
    limited.enter("k")
    assert refusal(limited).retry_after_s == 30


def test_places_are_taken_and_given_back() -> None:
    limited = limits(k=Rate(concurrent=2))
    limited.enter("k")
    limited.enter("k")
    assert "2 requests at one time" in refusal(limited).message
    limited.leave("k")
    limited.enter("k")
    for _ in range(2):
        limited.leave("k")
    assert limited.active() == {}
    limited.leave("k")
    assert limited.active() == {}


def test_tokens_are_charged_when_they_are_known_and_a_debt_is_waited_for() -> None:
    clock = Clock()
    limited = limits(clock, k=Rate(tokens_per_min=600, burst_s=10))
    asked = request()
    limited.enter("k")
    decided(limited, asked, 90)
    limited.enter("k")
    limited.on_end(over(asked, prompt_tokens=95, output_tokens=55, endpoint_id="e"))
    error = refusal(limited)
    assert error.retry_after_s == 5
    assert "600 tokens a minute" in error.message
    clock.now += 5.1
    limited.enter("k")


def test_a_request_that_ends_without_an_answer_pays_its_prompt_only() -> None:
    limited = limits(k=Rate(tokens_per_min=600, burst_s=10))
    asked = request()
    limited.enter("k")
    decided(limited, asked, 40)
    limited.on_end(over(asked, prompt_tokens=None, output_tokens=None, endpoint_id=None))
    assert dict(limited.enter("k"))[b"x-ratelimit-remaining-tokens"] == b"60"


def test_the_fields_are_those_that_openais_clients_know() -> None:
    limited = limits(k=Rate(requests_per_min=60, tokens_per_min=60_000, burst_s=60))
    assert dict(limited.enter("k")) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"60000",
        b"x-ratelimit-remaining-tokens": b"60000",
        b"x-ratelimit-reset-tokens": b"0s",
    }
    limited.charge("k", 60_500)
    limited.charge("k", 150_000)
    error = refusal(limited)
    fields = dict(error.headers())
    assert fields[b"x-ratelimit-remaining-tokens"] == b"0"
    assert fields[b"x-ratelimit-reset-tokens"] == b"3m31s"
    assert fields[b"retry-after"] == b"151"


def test_those_without_a_key_are_one() -> None:
    limited = KeyLimits({"": Rate(concurrent=1)}, Clock())
    limited.enter("")
    refusal(limited, "")
    decided(limited, request(None), 5)


def test_new_rates_count_at_once_and_old_ones_keep_what_was_used() -> None:
    limited = limits(same=Rate(concurrent=1), other=Rate(concurrent=1), gone=Rate(concurrent=1))
    for key in ("same", "other", "gone"):
        limited.enter(key)
    limited.apply({"same": Rate(concurrent=1), "other": Rate(concurrent=2)})
    refusal(limited, "same")
    limited.enter("other")
    refusal(limited, "other")
    assert limited.enter("gone") == []
    for key in ("same", "other", "other", "gone", "gone"):
        limited.leave(key)
    assert limited.active() == {}


def test_what_others_gave_is_missing_here_and_told_by_them_alone() -> None:
    limited = limits(k=Rate(requests_per_min=60, tokens_per_min=600, burst_s=10))
    limited.enter("k")
    limited.charge("k", 7)
    limited.used_elsewhere("k", 9, 30)
    limited.used_elsewhere("stranger", 9, 30)
    used = limited.take_used()
    assert {key: (amount.requests, amount.tokens) for key, amount in used.items()} == {"k": (1, 7)}
    assert limited.take_used() == {}
    refusal(limited)


@given(st.lists(st.sampled_from(["enter", "leave", "charge", "wait"]), max_size=80))
def test_nothing_is_kept_of_what_is_over(steps: list[str]) -> None:
    clock = Clock()
    limited = limits(clock, k=Rate(requests_per_min=600, tokens_per_min=6000, concurrent=3))
    inside: list[InferenceRequest] = []
    for step in steps:
        if step == "wait":
            clock.now += 0.3
        elif step == "charge" and inside:
            decided(limited, inside[-1], 100)
        elif step == "leave" and inside:
            limited.on_end(over(inside.pop(), prompt_tokens=90, output_tokens=9, endpoint_id="e"))
            limited.leave("k")
        elif step == "enter":
            try:
                limited.enter("k")
            except RateLimited as error:
                assert error.retry_after_s is not None
                assert error.retry_after_s >= 1
            else:
                inside.append(request())
        assert sum(limited.active().values()) == len(inside) <= 3
    for asked in inside:
        limited.on_end(over(asked))
        limited.leave("k")
    assert limited.active() == {}
    assert not limited._charged
