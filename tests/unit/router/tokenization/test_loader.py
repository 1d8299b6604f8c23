"""A tokenizer is loaded from wherever models keep it, or the error says the mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from router.errors import ConfigError
from router.tokenization.errors import NotRenderable
from router.tokenization.loader import load_tokenizer
from tests.support.tokenization import CHATML, model_folder, noon, small_tokenizer

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def tokens(folder: Path, fields: dict[str, Any] | None = None) -> list[int]:
    return list(load_tokenizer(str(folder), now=noon).chat(fields or HI).ids)


def encoded(text: str) -> list[int]:
    ids: list[int] = small_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


CHATML_HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_is_loaded_with_the_template_of_its_configuration(tmp_path: Path) -> None:
    assert tokens(model_folder(tmp_path)) == encoded(CHATML_HI)


def test_the_tokenizer_file_itself_may_be_named(tmp_path: Path) -> None:
    assert tokens(model_folder(tmp_path) / "tokenizer.json") == encoded(CHATML_HI)


def test_template_files_win_over_the_configuration(tmp_path: Path) -> None:
    model_folder(tmp_path, template="from the configuration")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from the processor"}))
    assert tokens(tmp_path) == encoded("from the processor")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert tokens(tmp_path) == encoded(CHATML_HI)
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("tools")
    assert tokens(tmp_path, {**HI, "tools": []}) == encoded("tools")


def test_a_configuration_may_name_several_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    model_folder(tmp_path, template=None, config={"chat_template": named})
    assert tokens(tmp_path) == encoded("plain")
    assert tokens(tmp_path, {**HI, "tools": []}) == encoded("tools")


@pytest.mark.parametrize("declared", ["<|bos|>", {"__type": "AddedToken", "content": "<|bos|>"}])
def test_special_tokens_may_be_text_or_objects(tmp_path: Path, declared: object) -> None:
    model_folder(
        tmp_path, template="{{ bos_token }}x{{ pad_token }}", config={"bos_token": declared, "pad_token": None}
    )
    assert tokens(tmp_path) == encoded("<|bos|>x")


def test_the_separate_map_of_special_tokens_counts_beside_an_older_configuration(tmp_path: Path) -> None:
    model_folder(tmp_path, template="{{ bos_token }}", config={"bos_token": "from config"})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "from map"}}))
    assert tokens(tmp_path) == encoded("from map")
    model_folder(tmp_path, template="{{ bos_token }}", config={"bos_token": "from config", "added_tokens_decoder": {}})
    assert tokens(tmp_path) == encoded("from config")


def test_added_tokens_of_the_configuration_are_added(tmp_path: Path) -> None:
    added = {"9001": {"content": "<|image|>", "special": True}, "0": {"content": "<|bos|>", "special": True}}
    model_folder(tmp_path, template="a<|image|>b", config={"added_tokens_decoder": added})
    first = small_tokenizer().get_vocab_size()
    assert tokens(tmp_path) == [*encoded("a"), first, *encoded("b")]


def test_a_template_may_ask_the_time(tmp_path: Path) -> None:
    assert tokens(model_folder(tmp_path, template="{{ strftime_now('%Y') }}")) == encoded("2026")


def test_a_model_without_a_template_has_no_chats_but_texts(tmp_path: Path) -> None:
    loaded = load_tokenizer(str(model_folder(tmp_path, template=None)))
    assert list(loaded.text("hi", {}).ids) == encoded("hi")
    with pytest.raises(NotRenderable):
        loaded.chat(HI)


def test_chats_of_a_model_that_engines_render_in_code_are_left_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    loaded = load_tokenizer(str(tmp_path))
    with pytest.raises(NotRenderable):
        loaded.chat(HI)
    assert "gpt_oss" in caplog.text


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no tokenizer.json"),
        ({"tokenizer.json": "{"}, "cannot be read"),
        ({"tokenizer.json": "{}"}, "cannot be read"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json cannot be read"),
        ({"tokenizer_config.json": "[]"}, "does not hold a JSON object"),
        ({"chat_template.jinja": "\n{% for %}"}, "does not compile .line 2"),
    ],
)
def test_a_broken_folder_is_an_error_that_says_the_mend(tmp_path: Path, files: dict[str, str], says: str) -> None:
    if files and "tokenizer.json" not in files:
        model_folder(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "~/nowhere", "a/b/c", "tokenizer.json"])
def test_a_path_that_is_not_there_is_never_looked_for_on_the_hub(source: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_tokenizer(source)


@pytest.mark.parametrize("source", ["nobody/has-this-model-of-ours", "-not a model id-"])
def test_a_model_that_is_not_in_the_hubs_cache_is_an_error_offline(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"hub|neither"):
        load_tokenizer(source, offline=True)


def test_a_model_in_the_hubs_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--us--tiny"
    model_folder(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    loaded = load_tokenizer("us/tiny", now=noon)
    assert list(loaded.chat(HI).ids) == encoded(CHATML_HI)


def test_the_tokenizer_that_the_project_ships_loads_with_its_template() -> None:
    shipped = Path(__file__).parents[4] / "loadtest" / "simulator" / "tokenizer"
    loaded = load_tokenizer(str(shipped), now=noon)
    reference = tokenizers.Tokenizer.from_file(str(shipped / "tokenizer.json"))
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    ids = loaded.chat({"messages": turns}).ids
    text = reference.decode(list(ids), skip_special_tokens=False)
    assert reference.encode(text, add_special_tokens=False).ids == list(ids)
    assert list(loaded.chat({"messages": [*turns, turns[0]]}).ids[: len(ids) - 3]) == list(ids)[:-3]
