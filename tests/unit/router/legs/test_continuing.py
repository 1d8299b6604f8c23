from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from router.core import EndpointState, ModelCard
from router.errors import UpstreamFailed
from router.observability.events import Outcome
from router.ports import UpstreamBroken, UpstreamRefused
from router.retry_budget import RetryBudget
from tests.support.journey import SSE, FakeReply, FakeResponse, Sent, World, answer, endpoint, request

PROMPT = [1, 2, 3]
CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
DONE = b"data: [DONE]\n\n"
CUT = UpstreamBroken("cut")


def event(choice: dict[str, Any], **more: Any) -> bytes:
    value = {"id": "a", "created": 1, "model": "m", "choices": [{"index": 0, **choice}], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def begins(_: Sent) -> FakeResponse:
    """A chat's first token, and no more."""
    opening = event({"delta": {"role": "assistant", "content": ""}}, prompt_token_ids=PROMPT)
    return FakeResponse(200, [SSE], [opening, event({"delta": {"content": "a"}, "token_ids": [10]}), CUT])


def goes_on(*pieces: Any) -> Callable[[Sent], FakeResponse]:
    return lambda _: FakeResponse(200, [SSE], list(pieces))


END = event({"text": "b", "token_ids": [11], "finish_reason": "stop"})
MORE = event({"text": "b", "token_ids": [11]})


def world(*others: Any, states: list[EndpointState] | None = None, **settings: Any) -> World:
    """The first endpoint begins, the others are as given."""
    names = ["first", *(f"other{number}" for number in range(len(others)))]
    return World(
        states or [endpoint(name) for name in names],
        {"first": begins, **dict(zip(names[1:], others, strict=True))},
        held={"first": 9},
        continue_streams=True,
        backoff_s=0.0,
        **settings,
    )


async def served(at: World, **more: Any) -> FakeReply:
    return await at.serve(request({**CHAT, "max_tokens": 9, **more}))


async def test_the_next_engine_is_asked_for_the_rest_of_the_tokens() -> None:
    at = world(goes_on(END, DONE))
    reply = await served(at)
    assert reply.ended
    assert reply.body.endswith(DONE)
    (asked,) = at.upstream.sent_to("other0")
    assert asked.path == "/v1/completions"
    assert (asked.json["prompt"], asked.json["max_tokens"]) == ([*PROMPT, 10], 8)
    (ended,) = at.recorder.ended
    assert (ended.outcome, ended.continued, ended.output_tokens, ended.prompt_tokens) == (Outcome.OK, 1, 2, 3)
    assert at.pool.failed == ["first"]
    assert at.inflight.snapshot() == {}
    assert all(response.closed for response in at.upstream.responses)


@pytest.mark.parametrize(
    "fails",
    [
        lambda _: UpstreamRefused("no"),
        lambda _: answer({}, 503),
        lambda _: answer({}, 400),
        goes_on(b'data: {"error": {"message": "no", "code": 500}}\n\n'),
        goes_on(),
        goes_on(MORE, CUT),
        goes_on(MORE, DONE),
    ],
    ids=["refused", "busy", "refusal", "error", "empty", "cut again", "without an end"],
)
async def test_one_that_cannot_is_followed_by_another(fails: Any) -> None:
    at = world(fails, goes_on(END, DONE))
    reply = await served(at)
    assert reply.ended
    assert at.recorder.ended[0].outcome is Outcome.OK
    assert at.inflight.snapshot() == {}


async def test_a_rest_that_breaks_every_engine_takes_none_out() -> None:
    at = world(lambda _: answer({}, 500), lambda _: answer({}, 500))
    at.pool.brink = {"other0", "other1"}
    with pytest.raises(UpstreamFailed):
        await served(at)
    assert at.pool.errors == []
    assert at.pool.excused == ["other0", "other1"]


async def test_attempts_are_bounded() -> None:
    at = world(*[goes_on(MORE, CUT)] * 6, max_attempts=3)
    with pytest.raises(UpstreamFailed):
        await served(at, max_tokens=50)
    assert len(at.upstream.sent) == 3
    assert at.recorder.ended[0].outcome is Outcome.CUT
    assert at.inflight.snapshot() == {}


async def test_the_retry_budget_bounds_them_too() -> None:
    at = world(goes_on(END, DONE), budget=RetryBudget(ratio=0.0, reserve=0))
    with pytest.raises(UpstreamFailed):
        await served(at)
    assert at.upstream.sent_to("other0") == []


@pytest.mark.parametrize(("length", "asked"), [(20, 16), (None, None)])
async def test_a_chat_without_a_limit_is_gone_on_with_where_the_models_length_is_known(
    length: int | None, asked: int | None
) -> None:
    cards = {"m": ModelCard(id="m", max_model_len=length)}
    states = [msgspec.structs.replace(endpoint(name), models=cards) for name in ("first", "other0")]
    at = world(goes_on(END, DONE), states=states)
    if asked is None:
        with pytest.raises(UpstreamFailed):
            await at.serve(request(CHAT))
        return
    await at.serve(request(CHAT))
    assert at.upstream.sent_to("other0")[0].json["max_tokens"] == asked


async def test_the_client_sees_usage_that_only_the_router_asked_for_in_neither_part() -> None:
    usage = b'data: {"id":"b","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":1}}\n\n'
    at = world(goes_on(END, usage, DONE), inject_stream_usage=True)
    reply = await served(at)
    assert b"usage" not in reply.body
    assert reply.body.endswith(DONE)
    assert at.upstream.sent_to("other0")[0].json["stream_options"]["include_usage"] is True
