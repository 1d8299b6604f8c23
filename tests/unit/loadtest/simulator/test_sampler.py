"""Answers depend on seed and prompt alone, and can be tokenized back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.sampler import EXACT_LIMIT, Prose, answer_length, begun, json_value, make_rng
from tests.support.simulator import tokenizer

TOKENIZER = tokenizer()


def prose(seed: int, prompt: list[int], count: int, salt: str = "") -> list[int]:
    return Prose(make_rng(seed, prompt, salt), TOKENIZER.words, 96).write(count)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 6000), min_size=1, max_size=20), st.integers(1, 200))
def test_equal_seeds_and_prompts_give_equal_answers_and_shorter_ones_are_prefixes(
    seed: int, prompt: list[int], count: int
) -> None:
    assert prose(seed, prompt, count + 1)[:count] == prose(seed, prompt, count)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 6000), min_size=1, max_size=20), st.integers(1, 200))
def test_a_prompt_that_ends_inside_an_answer_is_known_for_one(seed: int, prompt: list[int], count: int) -> None:
    text = [*prompt, *prose(seed, prompt, count)]
    found = begun(seed, text, "", TOKENIZER.words, 96)
    assert found >= count
    assert prose(seed, text[:-found], found) == text[-found:]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 6000), min_size=1, max_size=20), st.integers(1, 200))
def test_what_nothing_would_have_answered_is_no_beginning(seed: int, prompt: list[int], count: int) -> None:
    text = [*prompt, *prose(seed, prompt, count)]
    assert begun(seed, [*text, 0], "", TOKENIZER.words, 96) == 0
    other = begun(seed + 1, text, "", TOKENIZER.words, 96)
    # A token or two may be there by chance.
    assert other == 0 or prose(seed + 1, text[:-other], other) == text[-other:]


def test_an_answer_of_another_seed_is_no_beginning() -> None:
    assert begun(8, [1, 2, 3, *prose(7, [1, 2, 3], 40)], "", TOKENIZER.words, 96) == 0


def test_other_seeds_prompts_and_choices_give_other_answers() -> None:
    answers = {
        tuple(prose(*key, 40, salt)) for key, salt in (((0, [1]), ""), ((1, [1]), ""), ((0, [2]), ""), ((0, [1]), "1"))
    }
    assert len(answers) == 4


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_a_text_encodes_to_the_tokens_it_was_made_of(seed: int, count: int) -> None:
    ids = prose(seed, [1, 2, 3], count)
    text = "".join(TOKENIZER.piece(i) for i in ids)
    assert list(TOKENIZER.encode_now(text, special=False)) == ids


def test_short_limits_are_reached_and_long_ones_are_not() -> None:
    assert answer_length(100, 10_000, 60, exact=False) == (100, False)
    assert answer_length(EXACT_LIMIT + 1, 10_000, 60, exact=False) == (60, True)
    assert answer_length(EXACT_LIMIT + 1, 10_000, 60, exact=True) == (EXACT_LIMIT + 1, False)
    assert answer_length(None, 10_000, 60, exact=True) == (60, True)
    assert answer_length(None, 20, 60, exact=False) == (20, False)


@given(st.integers(0, 2**32))
def test_json_values_fit_their_schema(seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "maximum": 5},
            "c": {"enum": ["a", "b"]},
            "l": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
            "o": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        },
    }
    value = json.loads(json.dumps(json_value(make_rng(seed, [1], ""), schema)))
    assert 3 <= value["n"] <= 5
    assert value["c"] in ("a", "b")
    assert all(isinstance(x, bool) for x in value["l"]) and len(value["l"]) == 2
    assert isinstance(value["o"]["x"], (int, float))
