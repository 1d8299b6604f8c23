"""A model's tokenizer is the one named for it, or its own, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ConfigError
from router.tokenization.encoder import best_encoder
from router.tokenization.identity import ModelIdentity
from router.tokenization.local import LocalTokenizer
from router.tokenization.registry import Tokenizers
from tests.support.tokenization import small_tokenizer


class Shelf:
    """Loads any source but those that begin with "no"."""

    def __init__(self) -> None:
        self.loads: list[str] = []

    def __call__(self, source: str) -> LocalTokenizer:
        self.loads.append(source)
        if source.startswith("no"):
            raise ConfigError(f"tokenizer: {source} does not exist; give another.")
        return LocalTokenizer(source, best_encoder(small_tokenizer(), source), None)


def name(tokenizer: LocalTokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.name


IDENTITY = ModelIdentity("/models/base", served="served")


async def test_named_sources_are_loaded_at_the_start_and_once() -> None:
    shelf = Shelf()
    tokenizers = Tokenizers(shelf, None, named={"served": "a", "other": "a", "/models/x": "b"}, default="c")
    await tokenizers.start()
    assert shelf.loads == ["a", "b", "c"]
    assert name(tokenizers.get("served", IDENTITY)) == "a"
    assert name(tokenizers.get("adapter", ModelIdentity("/models/base", "adapter", "served"))) == "a"
    assert name(tokenizers.get("alias", ModelIdentity("/models/x", served="alias"))) == "b"
    assert name(tokenizers.get("unknown", ModelIdentity("unknown"))) == "c"
    await tokenizers.aclose()


async def test_a_named_source_that_does_not_load_stops_the_start() -> None:
    with pytest.raises(ConfigError):
        await Tokenizers(Shelf(), None, default="nowhere").start()


async def test_a_models_own_tokenizer_is_looked_for_once_and_there_is_none_until_it_is_found() -> None:
    shelf = Shelf()
    tokenizers = Tokenizers(shelf, shelf)
    assert tokenizers.get("served", IDENTITY) is None
    assert tokenizers.get("alias", IDENTITY) is None
    await tokenizers.settled()
    assert name(tokenizers.get("served", IDENTITY)) == "/models/base"
    assert shelf.loads == ["/models/base"]
    await tokenizers.aclose()


async def test_a_model_without_one_of_its_own_is_not_looked_for_again() -> None:
    shelf = Shelf()
    tokenizers = Tokenizers(shelf, shelf)
    for _ in range(2):
        assert tokenizers.get("m", ModelIdentity("nowhere")) is None
        await tokenizers.settled()
    assert shelf.loads == ["nowhere"]
    await tokenizers.aclose()


async def test_clients_cannot_make_it_look_for_ever_more_names() -> None:
    shelf = Shelf()
    tokenizers = Tokenizers(shelf, shelf)
    for number in range(500):
        tokenizers.get(f"no{number}", ModelIdentity(f"no{number}"))
    await tokenizers.settled()
    assert len(shelf.loads) <= 64
    await tokenizers.aclose()


async def test_nothing_is_looked_for_when_that_is_switched_off(tmp_path: Path) -> None:
    tokenizers = Tokenizers(Shelf(), None)
    assert tokenizers.get("m", ModelIdentity(str(tmp_path))) is None
    await tokenizers.aclose()
