"""The stripper takes out the one usage event and not a byte more, wherever the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.usage_stripper import UsageStripper

ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"say \\"usage\\": 5"}}]}\n\n'
ENDED = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def stripped(*chunks: bytes) -> bytes:
    stripper = UsageStripper()
    return b"".join([*map(stripper.feed, chunks), stripper.end()])


def test_the_usage_event_goes_with_the_empty_line_that_ends_it() -> None:
    assert stripped(ROLE, TEXT, ENDED, USAGE, DONE) == ROLE + TEXT + ENDED + DONE
    assert stripped(ROLE + TEXT + ENDED + USAGE + DONE) == ROLE + TEXT + ENDED + DONE


def test_a_spaced_event_with_crlf_goes_too() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\r\n\r\n'
    assert stripped(ROLE, usage, DONE) == ROLE + DONE


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"usage":{"prompt_tokens":1}\n\n',
        b'data: {"choices":[],"usage":{}} and more\n\n',
        b'{"choices":[],"usage":{"prompt_tokens":1}}\n\n',
        b'data: "usage" \xff\xfe\n\n',
        b": usage\n\n\n\n",
    ],
)
def test_nothing_else_is_taken(event: bytes) -> None:
    assert stripped(ROLE, event, DONE) == ROLE + event + DONE


def test_a_whole_event_is_never_held_back() -> None:
    stripper = UsageStripper()
    assert [stripper.feed(event) for event in (ROLE, TEXT, ENDED)] == [ROLE, TEXT, ENDED]
    assert stripper.feed(TEXT + TEXT[:9]) == TEXT
    assert stripper.feed(TEXT[9:]) == TEXT


def test_what_was_held_when_the_stream_broke_comes_at_the_end() -> None:
    assert stripped(ROLE, TEXT[:20]) == ROLE + TEXT[:20]
    assert stripped(ROLE, USAGE[:20]) == ROLE + USAGE[:20]
    assert stripped(ROLE, USAGE.rstrip()) == ROLE


def test_an_overlong_line_passes_in_pieces() -> None:
    stripper = UsageStripper()
    long = b'data: {"choices":[{"text":"' + b"x" * 50_000
    assert stripper.feed(long) == long
    assert stripper.feed(b'y"usage"') == b'y"usage"'
    assert stripper.feed(b'"}]}\n\n' + USAGE + DONE[:5]) == b'"}]}\n\n'
    assert stripper.feed(DONE[5:]) == DONE


@given(st.sets(st.integers(0, 700), max_size=30))
def test_any_cut_gives_the_same_str_02(cuts: set[int]) -> None:
    wire = ROLE + TEXT + ENDED + USAGE + DONE
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    assert stripped(*(wire[a:b] for a, b in pairwise(edges))) == ROLE + TEXT + ENDED + DONE


@given(st.lists(st.binary(max_size=40).filter(lambda chunk: b'"usage"' not in chunk)))
def test_a_stream_without_usage_passes_unchanged(chunks: list[bytes]) -> None:
    assert stripped(*chunks) == b"".join(chunks)
