"""YAML as it reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.plain_yaml import NotYaml, dump, load

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_PLAIN)
def test_what_is_written_out_is_read_back(value: Any) -> None:
    assert load(dump(value)) == yaml.safe_load(dump(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8000", 8000),
        ("-3", -3),
        ("1_000", 1000),
        ("0x50", 80),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        (".inf", math.inf),
        ("22:22", "22:22"),
        ("1:30.5", "1:30.5"),
        ("0123", "0123"),
        ("2026-01-01", "2026-01-01"),
        ("30s", "30s"),
        ("1.2.3", "1.2.3"),
        ("10.0.0.1", "10.0.0.1"),
        ("", None),
    ],
)
def test_a_number_is_what_looks_like_one(text: str, value: Any) -> None:
    read = load(text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize("text", ["0E0", "1e3", "22:22", "0123", "1_000", "2026-01-01", "yes", "~", ".inf", "-"])
def test_a_text_that_looks_like_something_else_is_written_in_quotes(text: str) -> None:
    assert load(dump({text: [text]})) == {text: [text]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", "c stands twice in line 4"),
        ("a: 1\n1: 2", "the key 1 is no text (put it in quotes) in line 2"),
        ("yes: 2", "the key yes is no text (put it in quotes) in line 1"),
        ("? [a]\n: 2", "a key is no plain text in line 1"),
        ("a: [", "expected the node content, but found '<stream end>' in line 1"),
        ("a: !!python/name:os.system", "could not determine a constructor for the tag"),
        ("[" * 5000, "it holds something that is no plain value"),
        ("a: 1\n---\nb: 2", "but found another document in line 2"),
    ],
)
def test_a_mistake_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(NotYaml) as caught:
        load(text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
