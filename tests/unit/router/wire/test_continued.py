"""A stream cut anywhere and gone on with is the whole stream, however the bytes of both parts are split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Api
from router.wire.continuable import Terms
from router.wire.continued import Continued, continued_body, ending
from router.wire.transcript import Transcript

PROMPT = [1, 2, 3]
DONE = b"data: [DONE]\n\n"


def terms(api: Api = Api.CHAT, **more: Any) -> Terms:
    given: dict[str, Any] = {"api": api, "carried": {"model": b'"m"'}, "max_tokens": 100, **more}
    return Terms(**given)


def event(choices: list[dict[str, Any]], name: str = "one", **more: Any) -> bytes:
    value = {"id": name, "object": "x", "created": 5, "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chat_event(text: str, ids: Sequence[int] | None, reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text, **delta}, "logprobs": None, "finish_reason": reason}
    return event([{**choice, "token_ids": None if ids is None else list(ids)}])


def opening(prompt: Sequence[int] | None = PROMPT) -> bytes:
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return event([role], prompt_token_ids=None if prompt is None else list(prompt), prompt_text=None)


def completion_event(text: str, ids: Sequence[int], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None, **more}
    return event([{**choice, "prompt_token_ids": None, "token_ids": list(ids)}], "two")


def counts(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def whole_chat(count: int, *, usage: bool) -> list[bytes]:
    """A chat's events with their ids, `count` tokens long."""
    last = count - 1
    said = [chat_event(f"t{at} ", [10 + at], "stop" if at == last else None) for at in range(count)]
    if usage:
        said.append(event([], usage=counts(len(PROMPT), count)))
    return [opening(), *said, DONE]


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def read(part: Transcript | Continued, chunks: Sequence[bytes]) -> bytes:
    return b"".join(map(part.feed, chunks))


def texts(body: bytes) -> str:
    said = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for each in said for choice in each["choices"])


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(count=st.integers(2, 8), cut_at=st.integers(0, 10_000), usage=st.booleans(), one=CUTS, two=CUTS)
def test_a_stream_cut_anywhere_and_gone_on_with_is_the_whole_one(
    count: int, cut_at: int, usage: bool, one: list[int], two: list[int]
) -> None:
    raw = b"".join(whole_chat(count, usage=usage))
    transcript = Transcript(terms(include_usage=usage))
    sent = read(transcript, split(raw[: cut_at % len(raw)], one))
    assert b"token_ids" not in sent.replace(b'token_ids":null', b"")
    if transcript.finished:
        sent += ending(transcript)
    elif not transcript.resumable:
        # The cut came before the first event had passed.
        assert sent == b""
        return
    else:
        body = json.loads(continued_body(transcript, None) or b"{}")
        produced = transcript.produced
        assert body["prompt"] == PROMPT + list(range(10, 10 + produced))
        assert body["max_tokens"] == 100 - produced
        rest = [
            completion_event(f"t{at} ", [10 + at], "stop" if at == count - 1 else None) for at in range(produced, count)
        ]
        if usage:
            rest.append(event([], "two", usage=counts(len(body["prompt"]), count - produced)))
        continued = Continued(transcript)
        sent += read(continued, split(b"".join([*rest, DONE]), two))
        assert not continued.failed
    assert transcript.produced == count
    assert texts(sent) == texts(raw)
    assert sent.endswith(DONE)
    assert sent.count(DONE) == 1
    events = [json.loads(line[6:]) for line in sent.decode().splitlines() if line.startswith("data: {")]
    assert {each["id"] for each in events} == {"one"}
    assert [each["usage"] for each in events if "usage" in each] == ([counts(len(PROMPT), count)] if usage else [])


@given(chunks=CUTS)
def test_what_is_not_gone_on_with_passes_as_it_came(chunks: list[int]) -> None:
    raw = b"".join([opening(None), chat_event("a", None), chat_event("b", None, "stop"), DONE, b": end"])
    transcript = Transcript(terms())
    assert read(transcript, split(raw, chunks)) + transcript.end() == raw
    assert not transcript.resumable


@given(data=st.binary(max_size=400), chunks=CUTS)
def test_no_byte_of_a_stream_of_any_kind_is_lost(data: bytes, chunks: list[int]) -> None:
    transcript = Transcript(terms(shows_ids=True))
    passed = read(transcript, split(data, chunks)) + transcript.end()
    assert passed == data or transcript.failed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "code", "x"]), inner),
    max_leaves=5,
)
CHOICE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("index", "delta", "text", "logprobs", "finish_reason", "stop_reason", "token_ids"), JSON),
)
ANY_EVENT = st.fixed_dictionaries(
    {},
    optional={"id": JSON, "created": JSON, "model": JSON, "usage": JSON, "error": JSON, "prompt_token_ids": JSON}
    | {"choices": st.lists(CHOICE | JSON, max_size=2) | JSON},
)


@given(said=st.lists(ANY_EVENT, max_size=6), api=st.sampled_from([Api.CHAT, Api.COMPLETIONS]))
def test_whatever_an_engine_says_is_passed_or_known_for_a_failure(said: list[Any], api: Api) -> None:
    wire = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in said]
    transcript = Transcript(terms(api, shows_ids=True))
    passed = read(transcript, wire) + transcript.end()
    assert passed == b"".join(wire) or transcript.failed
    begun = Transcript(terms())
    read(begun, [opening(), chat_event("a", [5])])
    continued = Continued(begun)
    told = read(continued, wire)
    assert begun.produced >= 1
    assert all(not line or json.loads(line[6:])["id"] == "one" for line in told.splitlines())


@pytest.mark.parametrize(
    "said",
    [
        [opening(), chat_event("", [5], reasoning="hm")],
        [opening(), chat_event("", [5], tool_calls=[{"index": 0}])],
        [opening(), chat_event("a", None)],
        [opening(None), chat_event("a", [5])],
        [opening(), chat_event("ab", [5, 6])],
        [opening(), b"data: {]\n\n", chat_event("a", [5])],
        [opening(), chat_event("a", [2**40])],
        [opening().replace(b"\n\n", b"\r\n\r\n"), chat_event("a", [5]).replace(b"\n\n", b"\r\n\r\n")],
    ],
    ids=["reasoning", "tool call", "no ids", "no prompt ids", "two tokens", "no JSON", "no id", "other line ends"],
)
def test_what_the_tokens_do_not_tell_is_not_gone_on_with(said: list[bytes]) -> None:
    transcript = Transcript(terms(shows_ids=True))
    passed = read(transcript, said)
    assert not transcript.resumable
    assert passed + transcript.end() == b"".join(said)


def test_tokens_whose_text_the_engine_still_kept_back_are_said_again() -> None:
    transcript = Transcript(terms())
    read(transcript, [opening(), chat_event("a", [5]), chat_event("", [6])])
    assert transcript.resumable
    assert json.loads(continued_body(transcript, None) or b"")["prompt"] == [*PROMPT, 5]


@pytest.mark.parametrize(
    "last",
    [
        b'data: {"error":{"message":"died","code":500}}\n\n' + DONE,
        chat_event("", [], "abort") + DONE,
    ],
    ids=["error", "abort"],
)
def test_an_engines_own_failure_does_not_pass_and_is_gone_on_from(last: bytes) -> None:
    transcript = Transcript(terms())
    passed = read(transcript, [opening(), chat_event("a", [5]) + last])
    assert texts(passed) == "a"
    assert transcript.failed
    assert transcript.resumable
    assert transcript.feed(DONE) == transcript.end() == b""


def test_an_error_of_the_request_is_the_clients_to_know() -> None:
    refusal = b'data: {"error":{"message":"too long","code":400}}\n\n'
    transcript = Transcript(terms())
    assert read(transcript, [opening(None), refusal, DONE]).endswith(refusal + DONE)
    assert not transcript.resumable


def test_usage_is_that_of_one_answer() -> None:
    transcript = Transcript(terms(include_usage=True))
    read(transcript, [opening(), chat_event("a", [5]), chat_event("b", [6])])
    continued = Continued(transcript)
    usage = {
        "prompt_tokens": 5,
        "total_tokens": 6,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    told = read(continued, [completion_event("c", [7], "length"), event([], "two", usage=usage), DONE])
    assert json.loads(told.split(b"\n\n")[1][6:])["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 6,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_an_answer_whose_output_had_ended_needs_no_engine_any_more() -> None:
    transcript = Transcript(terms(include_usage=True))
    read(transcript, [opening(), chat_event("a", [5]), chat_event("", [6], "stop")])
    assert transcript.finished
    told = ending(transcript)
    assert told.endswith(DONE)
    assert json.loads(told.split(b"\n\n")[0][6:])["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
    }


@pytest.mark.parametrize(
    ("limit", "longest", "left"), [(10, None, 9), (1, None, None), (None, None, None), (None, 8, 4), (None, 4, None)]
)
def test_no_more_is_asked_for_than_was_left(limit: int | None, longest: int | None, left: int | None) -> None:
    transcript = Transcript(terms(max_tokens=limit, min_tokens=3))
    read(transcript, [opening(), chat_event("a", [5])])
    body = continued_body(transcript, longest)
    assert (None if body is None else json.loads(body)["max_tokens"]) == left
    if body is not None:
        assert json.loads(body)["min_tokens"] == 2
        assert json.loads(body)["model"] == "m"


@pytest.mark.parametrize(
    "said",
    [
        b'data: {"error":{"message":"died","code":500}}\n\n',
        completion_event("", [], "abort"),
        completion_event("b", [6]).replace(b"[6]", b"null"),
        b"data: {]\n\n",
    ],
    ids=["error", "abort", "no ids", "no JSON"],
)
def test_a_next_engine_that_fails_too_is_noticed_and_nothing_of_it_passes(said: bytes) -> None:
    transcript = Transcript(terms())
    read(transcript, [opening(), chat_event("a", [5])])
    continued = Continued(transcript)
    assert continued.feed(said + DONE) == b""
    assert continued.failed
    assert transcript.resumable
