"""Names that share a cache share a chain, names that do not never meet."""

from __future__ import annotations

from router.tokenization.identity import (
    ModelIdentity,
    chain_start,
    estimate_start,
    model_identity,
    smallest_block_size,
)
from tests.support.tokenization import card, state

BASE = card("served", "/models/base", length=4096)
ALIAS = card("alias", "/models/base", length=4096)
LORA = card("adapter", "/models/lora", parent="served")
SERVING = state("e1", BASE, ALIAS, LORA)


def test_aliases_are_their_base_model() -> None:
    served, alias = (model_identity(name, [SERVING]) for name in ("served", "alias"))
    assert served == ModelIdentity("/models/base", None, "served", 4096)
    assert chain_start(alias) == chain_start(served)


def test_an_adapter_is_its_base_model_and_its_name() -> None:
    adapter = model_identity("adapter", [SERVING])
    assert adapter == ModelIdentity("/models/base", "adapter", "served", 4096)
    assert chain_start(adapter) != chain_start(model_identity("served", [SERVING]))


def test_an_adapter_whose_base_is_not_listed_goes_by_its_parents_name() -> None:
    assert model_identity("adapter", [state("e1", LORA)]) == ModelIdentity("served", "adapter", "served")


def test_no_model_is_the_engines_first_base_model() -> None:
    assert model_identity(None, [state("e1", LORA, BASE)]).root == "/models/base"


def test_an_unknown_name_is_its_own_root() -> None:
    assert model_identity("other", [SERVING]).root == "other"
    assert model_identity(None, []).root == ""
    assert model_identity("served", [state("e1"), SERVING]).root == "/models/base"


def test_estimates_never_share_a_chain_with_tokens() -> None:
    for name in ("served", "adapter"):
        identity = model_identity(name, [SERVING])
        assert estimate_start(identity) != chain_start(identity)


def test_the_smallest_reported_block_size_is_taken() -> None:
    sizes = [state("a", block_size=64), state("b", block_size=32), state("c", block_size=None)]
    assert smallest_block_size("m", sizes) == 32
    assert smallest_block_size("m", [state("c", block_size=None)]) == 16
    assert smallest_block_size("m", []) == 16
