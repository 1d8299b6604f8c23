"""A stream's times and troubles, from its lines and their times of arrival."""

from __future__ import annotations

import pytest

from loadtest.measure import StreamMeasure

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":32}}}\n'
)
DONE = b"data: [DONE]\n"


def word(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n' % text.encode()


def measured(*lines: bytes, step: float = 1.0) -> StreamMeasure:
    """Sent at 10; the lines arrive a step apart from then on."""
    measure = StreamMeasure(10.0)
    for number, line in enumerate(lines, start=1):
        measure.line(line, 10.0 + number * step)
    return measure


def test_ttft_runs_to_the_first_text_and_not_to_the_role() -> None:
    assert measured(ROLE, word("a"), END, DONE).ttft_s == 2.0


def test_gaps_are_those_between_parts_of_the_answer() -> None:
    measure = measured(ROLE, word("a"), b"\n", word("b"), b": a comment\n", word("c"), END, USAGE, DONE)
    assert measure.gaps_s == [2.0, 2.0]
    assert measure.answer == "abc"
    assert measure.e2e_s == 9.0


def test_tpot_divides_by_the_tokens_that_the_engine_counted() -> None:
    measure = measured(ROLE, word("a"), word("b"), word("c"), END, USAGE, DONE)
    assert measure.tpot_s == pytest.approx(2.0 / 4)


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    assert measured(ROLE, word("a"), END, DONE).tpot_s is None


def test_usage_says_what_was_cached() -> None:
    usage = measured(word("a"), END, USAGE, DONE).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (40, 32)


def test_an_engine_that_does_not_tell_is_unknown_and_not_zero() -> None:
    usage = measured(b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":1}}\n').usage
    assert usage is not None
    assert usage.cached_tokens is None


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thinking_aloud_counts_as_part_of_the_answer(field: str) -> None:
    thought = b'data: {"choices":[{"index":0,"delta":{"%s":"hm"}}]}\n' % field.encode()
    assert measured(ROLE, thought, word("a"), END, DONE).gaps_s == [1.0]


@pytest.mark.parametrize(
    ("lines", "trouble"),
    [
        ((ROLE, word("a"), END, USAGE, DONE), None),
        ((), "the stream ended before the answer did"),
        ((ROLE, word("a")), "the stream ended before the answer did"),
        ((ROLE, word("a"), END), "no [DONE] at the end of the stream"),
        ((word("a"), END.replace(b"stop", b"abort"), DONE), "the engine gave the answer up"),
        ((word("a"), b'data: {"error":{"message":"x","code":500}}\n', DONE), "an error in the stream"),
        ((word("a"), b"data: {oops\n", END, DONE), "a chunk that is no completion chunk"),
    ],
)
def test_what_is_no_good_answer_is_said(lines: tuple[bytes, ...], trouble: str | None) -> None:
    assert measured(*lines).trouble == trouble
