"""The committed tokenizer is the one that its script makes, and its template renders what vLLM's users expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.simulator.settings import TOKENIZER_PATH, SimulatorConfigError
from loadtest.simulator.text import SimTokenizer, TemplateError
from loadtest.simulator.train_tokenizer import main

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def tokenizer() -> SimTokenizer:
    return SimTokenizer.load(TOKENIZER_PATH)


def test_training_again_gives_the_committed_files(tmp_path: Path) -> None:
    main(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (TOKENIZER_PATH / name).read_bytes()


def test_it_is_small(tokenizer: SimTokenizer) -> None:
    assert sum(path.stat().st_size for path in TOKENIZER_PATH.iterdir()) < 500_000
    assert tokenizer.vocab_size == 6144


def test_a_chat_is_rendered_with_its_marks(tokenizer: SimTokenizer) -> None:
    text = tokenizer.render([SYSTEM, USER], add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_now(text, special=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token(ids[0]) == "<|im_start|>"


def test_each_turn_extends_the_prompt_of_the_one_before(tokenizer: SimTokenizer) -> None:
    first = tokenizer.render([SYSTEM, USER], add_generation_prompt=True)
    turns = [SYSTEM, USER, {"role": "assistant", "content": "Rivers."}, USER]
    assert tokenizer.render(turns, add_generation_prompt=True).startswith(first + "Rivers.<|im_end|>\n")


def test_any_text_survives_the_way_there_and_back(tokenizer: SimTokenizer) -> None:
    for text in ("naïve café 東京 🚀", "\n\n\t  x  \n", "def f(x):\n    return x[0] + 1\n", '{"a": [1, 2, null]}'):
        assert tokenizer.decode(tokenizer.encode_now(text, special=False)) == text


async def test_long_texts_are_encoded_as_short_ones_are(tokenizer: SimTokenizer) -> None:
    text = "rivers and mountains " * 1000
    assert await tokenizer.encode(text, special=False) == tokenizer.encode_now(text, special=False)


def test_a_template_that_refuses_and_a_folder_without_a_tokenizer_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER_PATH / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no systems here') }}")
    with pytest.raises(TemplateError, match="no systems here"):
        SimTokenizer.load(tmp_path).render([USER])
    with pytest.raises(SimulatorConfigError, match=r"tokenizer\.json"):
        SimTokenizer.load(tmp_path / "nowhere")
