"""What a model name stands for: whose KV blocks its prompts can share, and in which block size. PURE.

Served names of one model are aliases: they share a cache, so the chain of block hashes starts from the base model's
``root`` and not from the name a client used. A LoRA adapter's blocks are its own: base model plus adapter name. Whoever
files an engine's events must start from the same root (`chain_start`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kvindex.hashing import chain_root
from router.core import EndpointState, ModelCard

DEFAULT_BLOCK_SIZE = 16
_ESTIMATE_DOMAIN = "\x00estimate:"


class ModelIdentity(NamedTuple):
    """The base model behind a served name."""

    root: str
    """The base model's path or hub id, or the served name where no card tells."""
    lora: str | None = None
    """The adapter's served name."""
    served: str | None = None
    """The base model's served name."""
    max_model_len: int | None = None


def model_identity(model: str | None, candidates: Sequence[EndpointState]) -> ModelIdentity:
    """What `model` (None: an engine's default, its first base model) is on the first candidate that knows it."""
    for state in candidates:
        if (card := _card(model, state.models)) is not None:
            return identity_of(card, state.models)
    return ModelIdentity(model or "", served=model)


def identity_of(card: ModelCard, cards: Mapping[str, ModelCard]) -> ModelIdentity:
    """The identity behind one card, given all cards of its endpoint."""
    if card.parent is None:
        return ModelIdentity(card.root or card.id, None, card.id, card.max_model_len)
    base = cards.get(card.parent)
    if base is None:
        return ModelIdentity(card.parent, card.id, card.parent)
    return ModelIdentity(base.root or base.id, card.id, base.id, base.max_model_len)


def chain_start(identity: ModelIdentity) -> int:
    """The root of the block-hash chains of exact tokens."""
    return _chain_root(identity.root, identity.lora)


def estimate_start(identity: ModelIdentity) -> int:
    """The root for estimates: another one, so that stand-in ids can never match a block of real tokens."""
    return _chain_root(_ESTIMATE_DOMAIN + identity.root, identity.lora)


def smallest_block_size(model: str | None, candidates: Sequence[EndpointState]) -> int:
    """The smallest that the candidates report, or 16: a chain in small blocks says the most about the others'."""
    return min((state.block_size for state in candidates if state.block_size), default=DEFAULT_BLOCK_SIZE)


_chain_root = lru_cache(maxsize=256)(chain_root)
"""Asked for once a request, with few different answers."""


def _card(model: str | None, cards: Mapping[str, ModelCard]) -> ModelCard | None:
    if model is not None:
        return cards.get(model)
    return next((card for card in cards.values() if card.parent is None), None)
