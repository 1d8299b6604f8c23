from __future__ import annotations

import json

import pytest

from router.wire.priority import with_priority


@pytest.mark.parametrize("key", ["priority", "prior\\u0069ty"])
@pytest.mark.parametrize("value", ["-5", '"-5"', "[1]"])
def test_a_priority_is_taken_out_however_it_is_written_and_nothing_else_is(key: str, value: str) -> None:
    body = f'{{"a": 0.30000000000000004, "{key}": {value}, "priority": 1, "b": {{"priority": 2}}}}'.encode()
    taken = with_priority(body, None)
    assert json.loads(taken) == {"a": 0.30000000000000004, "b": {"priority": 2}}
    assert b"0.30000000000000004" in taken


def test_a_priority_is_replaced_in_its_place() -> None:
    assert with_priority(b'{"priority": -9, "b": 1}', -5) == b'{"priority": -5, "b": 1}'
