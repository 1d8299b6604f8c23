"""The scanner sees first content, counts, usage, ends and errors in a passing stream, wherever the events are cut."""

from __future__ import annotations

import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Api
from router.wire.sse import BlindScanner, JsonScanner, StreamOutcome, StreamScanner, scanner_for
from router.wire.usage import Usage

DONE = b"data: [DONE]\n\n"
COMPACT, SPACED = (",", ":"), (", ", ": ")


def event(fields: dict[str, Any], separators: tuple[str, str] = COMPACT, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(fields, separators=separators)}\n\n".encode()


def chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more}


def usage_only(cached: int | None = 32) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": 40, "total_tokens": 43, "completion_tokens": 3, "prompt_tokens_details": details}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def chat_stream(separators: tuple[str, str] = COMPACT) -> bytes:
    events = [
        chat({"role": "assistant", "content": ""}),
        chat({"content": "one"}),
        chat({"content": "two"}),
        chat({"content": "three"}, "stop"),
        usage_only(),
    ]
    return b"".join(event(fields, separators) for fields in events) + DONE


MESSAGES_STREAM = b"".join(
    event(fields, name=str(fields["type"]))
    for fields in (
        {"type": "message_start", "message": {"usage": {"input_tokens": 13, "output_tokens": 0}}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}, "index": 0},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}, "index": 0},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )
)

RESPONSES_STREAM = b"".join(
    event(fields, name=str(fields["type"]))
    for fields in (
        {"response": {"status": "in_progress", "usage": None}, "type": "response.created"},
        {"part": {"text": "", "type": "output_text"}, "type": "response.content_part.added"},
        {"delta": "a", "type": "response.output_text.delta"},
        {"delta": "b", "type": "response.output_text.delta"},
        {
            "response": {
                "output": [{"status": "completed", "content": [{"text": "ab"}]}],
                "status": "incomplete",
                "usage": {"input_tokens": 13, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 2},
            },
            "type": "response.completed",
        },
    )
)


def scan(api: Api, *chunks: bytes) -> tuple[StreamOutcome, list[int]]:
    """The outcome, and which chunks brought the first content."""
    scanner = StreamScanner(api)
    first = [index for index, chunk in enumerate(chunks) if scanner.feed(chunk)]
    return scanner.result(), first


@pytest.mark.parametrize("separators", [COMPACT, SPACED], ids=["compact", "spaced"])
def test_a_chat_stream(separators: tuple[str, str]) -> None:
    outcome, _ = scan(Api.CHAT, chat_stream(separators))
    assert outcome == StreamOutcome(
        content_seen=True, output_chunks=3, usage=Usage(40, 3, 32), finish_reasons=("stop",), done=True
    )
    assert not outcome.aborted
    assert outcome.output_tokens == 3


def test_a_completions_stream() -> None:
    def piece(text: str, finish: str | None = None) -> bytes:
        return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})

    outcome, first = scan(Api.COMPLETIONS, piece(""), piece("a"), piece("b", "length"), DONE)
    assert (first, outcome.output_chunks, outcome.finish_reasons, outcome.done) == ([1], 2, ("length",), True)


def test_a_messages_stream_takes_what_the_last_usage_leaves_open_from_the_first() -> None:
    outcome, _ = scan(Api.MESSAGES, MESSAGES_STREAM)
    assert outcome == StreamOutcome(
        content_seen=True, output_chunks=2, usage=Usage(13, 2, None), finish_reasons=("max_tokens",), done=True
    )


def test_a_responses_stream_ends_with_the_responses_status_and_not_an_items() -> None:
    outcome, _ = scan(Api.RESPONSES, RESPONSES_STREAM)
    assert outcome == StreamOutcome(
        content_seen=True, output_chunks=2, usage=Usage(13, 2, 8), finish_reasons=("incomplete",), done=True
    )


def test_the_empty_role_event_is_not_the_first_token_met_05() -> None:
    role, content = event(chat({"role": "assistant", "content": ""})), event(chat({"content": "x"}))
    assert scan(Api.CHAT, role, role, content, content)[1] == [2]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"refusal": "x"},
    ],
    ids=lambda delta: next(iter(delta)),
)
def test_anything_a_model_says_is_content(delta: dict[str, Any]) -> None:
    assert scan(Api.CHAT, event(chat(delta)))[1] == [0]


def test_an_end_without_any_text_counts_as_the_first_content() -> None:
    assert scan(Api.CHAT, event(chat({"role": "assistant"})), event(chat({}, "stop")), DONE)[1] == [1]


def test_the_last_of_continuous_usage_counts() -> None:
    counts = [{"prompt_tokens": 7, "completion_tokens": n} for n in range(1, 6)]
    chunks = [event(chat({"content": "x"}, usage=usage)) for usage in counts]
    assert scan(Api.CHAT, *chunks)[0].usage == Usage(7, 5, None)
    assert scan(Api.CHAT, *chunks, event(usage_only()), DONE)[0].usage == Usage(40, 3, 32)
    assert scan(Api.CHAT, b"".join(chunks))[0].usage == Usage(7, 5, None)


def test_a_null_usage_says_nothing() -> None:
    assert scan(Api.CHAT, event(chat({"content": "x"}, usage=None)), DONE)[0].usage is None


def test_without_usage_the_chunks_are_counted() -> None:
    outcome, _ = scan(Api.CHAT, *[event(chat({"content": "x"}))] * 5)
    assert (outcome.usage, outcome.output_tokens) == (None, 5)


def test_an_abort_nobody_asked_for_is_seen() -> None:
    outcome, _ = scan(Api.CHAT, event(chat({"content": "x"})), event(chat({}, "abort")), DONE)
    assert outcome.aborted
    assert outcome.done


def test_every_choice_may_end_for_its_own_reason() -> None:
    outcome, _ = scan(Api.CHAT, event(chat({"content": "x"}, "stop")), event(chat({"content": "y"}, "length")))
    assert outcome.finish_reasons == ("stop", "length")
    outcome, _ = scan(Api.CHAT, *[event(chat({}, "stop")), event(chat({}, "length"))] * 3)
    assert outcome.finish_reasons == ("stop", "length")


@pytest.mark.parametrize(
    ("api", "wire", "code"),
    [
        (Api.CHAT, b'data: {"error": {"message": "secret", "type": "X", "param": null, "code": 500}}\n\n', 500),
        (Api.COMPLETIONS, b'data: {"error":{"message":"secret","code":"503"}}\n\n', 503),
        (Api.MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', None),
        (Api.RESPONSES, b'event: error\ndata: {"code":"server_error","type":"error"}\n\n', None),
        (Api.RESPONSES, b'event: response.failed\ndata: {"response":{"status":"failed"}}\n\n', None),
    ],
)
def test_an_error_inside_the_stream_is_seen_str_12(api: Api, wire: bytes, code: int | None) -> None:
    outcome, _ = scan(api, wire, DONE)
    assert (outcome.error, outcome.error_code) == (True, code)


@pytest.mark.parametrize(
    "text",
    [
        'data: {"error": 1}',
        '\ndata: {"error": {"code": 500}}\n\n',
        "data: [DONE]",
        '"finish_reason":"abort"',
        '"usage":{"prompt_tokens":1}',
        "event: error\n",
    ],
)
def test_what_a_model_writes_is_never_taken_for_the_engines_word(text: str) -> None:
    outcome, _ = scan(Api.CHAT, event(chat({"content": "x"})), event(chat({"content": text})))
    assert outcome == StreamOutcome(content_seen=True, output_chunks=2)


def test_malformed_lines_are_passed_over_mal_14() -> None:
    good = event(chat({"content": "x"}))
    broken = (
        b'data: {bad\n\ngarbage line\n\n:comment\n\ndata: 3\n\ndata: \xff\xfe\n\ndata: {"choices":[3,{"delta":4}]}\n\n'
    )
    outcome, first = scan(Api.CHAT, broken, good, broken, good, DONE)
    assert first == [1]
    assert (outcome.output_chunks, outcome.done, outcome.error) == (3, True, False)


def test_a_comment_is_not_an_event() -> None:
    assert scan(Api.CHAT, b": " + event(chat({"content": "x"})))[1] == []


def test_an_end_in_an_event_too_long_to_decode_is_still_the_first_content() -> None:
    wire = event({"padding": "x" * 100_000, **chat({"content": "x"}, "stop")})
    assert scan(Api.CHAT, wire[:90_000], wire[90_000:])[1] == [1]


def test_a_line_that_never_ends_takes_bounded_memory() -> None:
    scanner = StreamScanner(Api.CHAT)
    tracemalloc.start()
    try:
        for _ in range(1000):
            scanner.feed(b"x" * 10_000)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_empty_stream_has_no_outcome_str_05() -> None:
    assert scan(Api.CHAT)[0] == StreamOutcome()


def test_a_last_line_without_a_line_break_is_taken_in_at_the_end() -> None:
    assert scan(Api.CHAT, chat_stream().rstrip())[0] == scan(Api.CHAT, chat_stream())[0]


def test_of_an_overlong_line_the_end_still_counts() -> None:
    fields = {"response": {"output": "x" * 300_000, "status": "completed", "usage": {"output_tokens": 2}}}
    wire = event({**fields, "type": "response.completed"})
    pieces = [wire[at : at + 5000] for at in range(0, len(wire), 5000)]
    outcome, _ = scan(Api.RESPONSES, *pieces)
    assert outcome.usage == Usage(None, 2, None)
    assert outcome.finish_reasons == ("completed",)


STREAMS = {
    "chat": (Api.CHAT, chat_stream()),
    "chat spaced": (Api.CHAT, chat_stream(SPACED)),
    "messages": (Api.MESSAGES, MESSAGES_STREAM),
    "responses": (Api.RESPONSES, RESPONSES_STREAM),
    "crlf": (Api.CHAT, chat_stream().replace(b"\n", b"\r\n")),
}


@given(st.sampled_from(sorted(STREAMS)), st.sets(st.integers(0, 2000), max_size=30))
def test_any_cut_gives_the_same_str_02(name: str, cuts: set[int]) -> None:
    api, wire = STREAMS[name]
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    chunks = [wire[a:b] for a, b in pairwise(edges)]
    outcome, first = scan(api, *chunks)
    assert outcome == scan(api, wire)[0]
    assert len(first) == 1


@given(st.sampled_from(list(Api)), st.lists(st.binary(max_size=60)))
def test_no_bytes_make_it_raise(api: Api, chunks: list[bytes]) -> None:
    scan(api, *chunks, b"\n")


@given(
    st.lists(st.sampled_from([b"data:", b'{"error"', b'"usage":', b"{", b"[" * 2000, b'"delta":', b"\n", b"1", b"}"]))
)
def test_no_half_finished_json_makes_it_raise(parts: list[bytes]) -> None:
    scan(Api.CHAT, b"".join(parts))


def test_a_json_answer_is_read_from_its_tail() -> None:
    body = json.dumps(
        {
            "choices": [{"message": {"content": "x" * 200_000}, "finish_reason": "stop", "stop_reason": "\n"}],
            "usage": usage_only()["usage"],
            "kv_transfer_params": None,
        }
    ).encode()
    scanner = JsonScanner(Api.CHAT)
    assert not any(scanner.feed(body[at : at + 7000]) for at in range(0, len(body), 7000))
    outcome = scanner.result()
    assert (outcome.usage, outcome.finish_reasons, outcome.done) == (Usage(40, 3, 32), ("stop",), True)


def test_a_json_answer_of_responses_ends_with_its_status() -> None:
    scanner = JsonScanner(Api.RESPONSES)
    scanner.feed(b'{"output":[{"status":"completed"}],"status":"incomplete","usage":{"output_tokens":4}}')
    assert scanner.result().finish_reasons == ("incomplete",)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        (b"text/event-stream; charset=utf-8", StreamScanner),
        (b"Text/Event-Stream", StreamScanner),
        (b"application/json", JsonScanner),
        (b"audio/mpeg", BlindScanner),
        (b"", BlindScanner),
    ],
)
def test_the_content_type_chooses_the_scanner(content_type: bytes, kind: type) -> None:
    assert type(scanner_for(Api.CHAT, content_type)) is kind


def test_a_blind_scanner_sees_nothing() -> None:
    scanner = BlindScanner()
    assert not scanner.feed(chat_stream())
    assert scanner.result() == StreamOutcome()


RECORDED = {
    "http/chat_stream_usage.http": (Api.CHAT, Usage(40, 6, 32), ("length",), 6),
    "http/chat_stream_n2.http": (Api.CHAT, None, ("length",), 6),
    "http/completion_stream_usage_continuous.http": (Api.COMPLETIONS, Usage(7, 4, 0), ("length",), 4),
    "http/messages_stream.http": (Api.MESSAGES, Usage(13, 4, 0), ("max_tokens",), 4),
    "http/responses_stream.http": (Api.RESPONSES, Usage(13, 4, 0), ("incomplete",), 2),
    "sse/chat_stream_engine_killed_midstream.http": (Api.CHAT, None, (), 164),
}


@pytest.mark.parametrize("name", RECORDED)
def test_streams_recorded_from_vllm_one_byte_at_a_time(name: str) -> None:
    folder = os.environ.get("KVROUTER_FIXTURES")
    if not folder:
        pytest.skip("KVROUTER_FIXTURES names no folder of recorded vLLM answers")
    body = (Path(folder) / name).read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    api, usage, reasons, chunks = RECORDED[name]
    outcome, first = scan(api, *(bytes([byte]) for byte in body))
    assert (outcome.usage, outcome.finish_reasons, outcome.output_chunks) == (usage, reasons, chunks)
    assert (outcome.done, outcome.error, len(first)) == (True, "killed" in name, 1)
