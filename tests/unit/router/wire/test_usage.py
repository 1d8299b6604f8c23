"""Token counts are read in each dialect, and only where they are."""

from __future__ import annotations

import pytest

from router.wire.usage import Usage, usage_from_json


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (
            b'{"usage":{"prompt_tokens":7,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}',
            Usage(7, 6, 4),
        ),
        (b'{"usage": {"prompt_tokens": 7, "prompt_tokens_details": null}}', Usage(7, None, None)),
        (b'{"usage":{"input_tokens":13,"output_tokens":4,"cache_read_input_tokens":0}}', Usage(13, 4, 0)),
        (b'{"usage":{"input_tokens":13,"input_tokens_details":{"cached_tokens":8}}}', Usage(13, None, 8)),
        (b'...tail of a body","usage":{"prompt_tokens":1},"kv_transfer_params":{"a":[1,2]}}', Usage(1, None, None)),
        (b'{"usage":{"prompt_tokens":1},"metrics":{"usage":null}}', Usage(1, None, None)),
        (b'{"usage":{"prompt_tokens":1},"later":{"usage":{"prompt_tokens":2}}}', Usage(2, None, None)),
    ],
)
def test_counts_are_found(body: bytes, usage: Usage) -> None:
    assert usage_from_json(body) == usage


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":',
        b'{"usage":{"prompt_tokens":"7","completion_tokens":true,"cached_tokens":-1}}',
        b'{"text":"\\"usage\\":{\\"prompt_tokens\\":7}"}',
        b'{"usage":{"a":' + b"[" * 5000,
        b'{"usage":{"prompt_tokens":1e400}}',
    ],
)
def test_what_is_not_a_count_is_none(body: bytes) -> None:
    assert usage_from_json(body) is None


def test_a_later_report_wins_and_leaves_nothing_open() -> None:
    assert Usage(None, 5, None).or_else(Usage(3, 1, 2)) == Usage(3, 5, 2)
    assert Usage(1, 2, 3).or_else(None) == Usage(1, 2, 3)
