"""Whichever encoder is taken, it gives the ids of the reference."""

from __future__ import annotations

from array import array

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from router.tokenization import encoder
from router.tokenization.encoder import FastEncoder, HfEncoder, best_encoder
from tests.support.tokenization import SPECIAL, small_tokenizer

_tokenizer = small_tokenizer(adds_bos=True)
_reference = HfEncoder(_tokenizer)
_fast = FastEncoder(_tokenizer.to_str(), _reference.special_ids)
_text = st.lists(st.text(max_size=20) | st.sampled_from([*SPECIAL, "\n\n", "  ", "hello world"]), max_size=8)


@settings(deadline=None)
@given(_text, st.booleans())
def test_the_fast_encoder_equals_the_reference(pieces: list[str], special: bool) -> None:
    text = "".join(pieces)
    ids = _fast.encode(text, add_special_tokens=special)
    assert ids == _reference.encode(text, add_special_tokens=special)
    assert ids.typecode == "I"


@settings(deadline=None)
@given(_text)
def test_ids_up_to_an_added_token_do_not_depend_on_what_follows(pieces: list[str]) -> None:
    head = "".join(pieces) + SPECIAL[2]
    ids = _fast.encode(head, add_special_tokens=False)
    assert _fast.encode(head + "anything else", add_special_tokens=False)[: len(ids)] == ids


def test_special_tokens_are_added_only_when_asked_for() -> None:
    bos = _tokenizer.token_to_id("<|bos|>")
    assert _fast.encode("hi", add_special_tokens=True)[0] == bos
    assert bos not in _fast.encode("hi", add_special_tokens=False)


def test_what_a_file_says_of_truncation_and_padding_is_ignored() -> None:
    tokenizer = small_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    whole = _reference.encode("one two three four five six", add_special_tokens=False)
    assert best_encoder(tokenizer, "t").encode("one two three four five six", add_special_tokens=False) == whole


def test_fastokens_is_taken_when_it_agrees() -> None:
    assert isinstance(best_encoder(small_tokenizer(), "t"), FastEncoder)


def test_fastokens_is_not_taken_when_it_differs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Differs(FastEncoder):
        def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
            ids = super().encode(text, add_special_tokens=add_special_tokens)
            return ids[:-1] if "<|im_end|>" in text else ids

    monkeypatch.setattr(encoder, "FastEncoder", Differs)
    assert isinstance(best_encoder(small_tokenizer(), "my-model"), HfEncoder)
    assert "my-model" in caplog.text
    assert "differs" in caplog.text


def test_a_tokenizer_that_fastokens_cannot_load_is_encoded_by_hf(caplog: pytest.LogCaptureFixture) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    chosen = best_encoder(words, "words")
    assert list(chosen.encode("a b", add_special_tokens=False)) == [0, 1]
    assert isinstance(chosen, HfEncoder)
    assert "words" in caplog.text
