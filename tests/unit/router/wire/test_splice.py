"""Splicing changes the members it is told to and leaves every other byte alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.splice import SpliceError, members, raw_value, splice

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_pairs = st.lists(st.tuples(st.text(max_size=5), _values), max_size=7)
_spaces = st.sampled_from(["", " ", "\n", "\t \r\n"])


@st.composite
def _objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """An object's bytes as some client might write it (duplicates, escapes, odd spaces) with its members."""
    pairs = draw(_pairs)
    gap = draw(_spaces)
    ascii_only = draw(st.booleans())
    indent = draw(st.sampled_from([None, 1]))

    def dump(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    inner = f"{gap},{gap}".join(f"{dump(key)}{gap}:{gap}{dump(value)}" for key, value in pairs)
    return f"{gap}{{{gap}{inner}{gap}}}{gap}".encode("utf-8", "surrogatepass"), pairs


def _pairs_of(body: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=_Pairs)
    return list(found)


class _Pairs(list[tuple[str, Any]]):
    """A decoded object that keeps duplicates and order."""


@given(_objects())
def test_changing_nothing_gives_the_same_bytes(made: tuple[bytes, list[tuple[str, Any]]]) -> None:
    body, _ = made
    assert splice(body) == body
    assert splice(body, remove={"a key nobody sent"}) == body


@given(_objects(), st.sets(st.text(max_size=5), max_size=3), st.integers(0, 6))
def test_removing_takes_out_just_those_members(
    made: tuple[bytes, list[tuple[str, Any]]], extra: set[str], pick: int
) -> None:
    body, pairs = made
    remove = extra | {key for key, _ in pairs[pick : pick + 2]}
    after = splice(body, remove=remove)
    assert _pairs_of(after) == [pair for pair in _pairs_of(body) if pair[0] not in remove]


@given(_objects(), st.dictionaries(st.text(max_size=5) | st.just("ab"), _values, max_size=3), st.integers(0, 6))
def test_setting_replaces_in_place_or_appends_and_leaves_the_rest(
    made: tuple[bytes, list[tuple[str, Any]]], new: dict[str, Any], pick: int
) -> None:
    body, pairs = made
    new = {**new, **{key: "replaced" for key, _ in pairs[pick : pick + 1]}}
    after = splice(body, set={key: json.dumps(value).encode() for key, value in new.items()})
    decoded = json.loads(after)
    assert decoded == {**json.loads(body), **new}
    untouched = [pair for pair in _pairs_of(body) if pair[0] not in new]
    assert [pair for pair in _pairs_of(after) if pair[0] not in new] == untouched
    assert len({key for key, _ in _pairs_of(after)} & new.keys()) == len(new)


@given(_objects(), st.text(max_size=5))
def test_the_bytes_of_untouched_members_survive(made: tuple[bytes, list[tuple[str, Any]]], key: str) -> None:
    body, _ = made
    after = splice(body, remove={key}, set={"set by us": b"1"})
    kept = [body[m.start : m.end] for m in members(body) if m.key not in (key, "set by us")]
    assert [after[m.start : m.end] for m in members(after) if m.key != "set by us"] == kept


def test_what_decoding_would_lose_survives() -> None:
    body = (
        rb'{ "temperature": 0.30000000000000004, "seed":123456789012345678901234567890,'
        rb' "a":1, "b":"\u00e9\ud83d", "a":2e0, "max_tokens": 5 }'
    )
    assert splice(body, set={"max_tokens": b"1"}) == body.replace(b"5 }", b"1 }")
    assert splice(body, remove={"max_tokens"}) == body.replace(b', "max_tokens": 5', b"")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"k":1}', b"{}"),
        (b'{"k":1,"a":2}', b'{"a":2}'),
        (b'{"a":2,"k":[1,{"k":"}"}]}', b'{"a":2}'),
        (b'{"a":2,"k":"\\"}","b":3}', b'{"a":2,"b":3}'),
        (b'{"k":1,"a":{"k":1},"k":2}', b'{"a":{"k":1}}'),
        (b'{"\\u006b":1}', b"{}"),
    ],
)
def test_a_key_is_removed_wherever_it_stands_at_the_top(body: bytes, left: bytes) -> None:
    assert splice(body, remove={"k"}) == left


def test_a_member_is_added_to_an_empty_object() -> None:
    assert splice(b" { } ", set={"k": b"[1]"}) == b' {"k":[1] } '
    assert splice(b" { } ", set={"a key": b"[1]"}) == b' {"a key":[1] } '


def test_the_last_of_duplicates_is_the_value() -> None:
    assert raw_value(b'{"a": [1] , "a" : {"b":2}}', "a") == b'{"b":2}'
    assert raw_value(b'{"a":1}', "b") is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"{", b'{"a"', b'{"a":', b'{"a":"', b'{"a":[1}', b'{"a":1', b'{"a" 1}']
)
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(SpliceError):
        splice(body, remove={"a"})


def test_a_key_that_is_only_a_value_or_deeper_down_is_added_at_the_top() -> None:
    body = b'{"a":"k","b":{"k":1} }'
    assert splice(body, set={"k": b"2"}) == b'{"a":"k","b":{"k":1},"k":2 }'
    assert splice(body, remove={"k"}) == body


def test_nesting_does_not_overflow() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"k":1}'
    assert splice(deep, remove={"k"}) == deep.replace(b',"k":1', b"")
