"""A model's own tokenizer and chat template: a request's prompt as exact token ids."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from router.tokenization.encoder import Encoder
from router.tokenization.errors import NotRenderable
from router.tokenization.rendering import ChatRenderer


class PromptTokens(NamedTuple):
    """One prompt's tokens."""

    ids: array[int]
    """``array('I')``, exact. With media they end at the last point that does not depend on the media."""
    total: int
    """All tokens that could be counted: more than ``len(ids)`` when media cut the ids short (the media's own are
    not in it)."""


class LocalTokenizer:
    """Safe to use from several threads at once."""

    def __init__(self, name: str, encoder: Encoder, renderer: ChatRenderer | None) -> None:
        self.name = name
        self._encoder = encoder
        self._renderer = renderer

    def system_first(self, tools: object) -> bool:
        """Whether the template refuses a system message that is not the first (Anthropic's API allows them)."""
        return self._renderer is None or self._renderer.template_for(tools).wants_system_first

    @property
    def thinking_off_effort(self) -> str:
        """See `ChatRenderer.thinking_off_effort`."""
        return self._renderer.thinking_off_effort if self._renderer is not None else "none"

    def chat(self, fields: Mapping[str, Any], max_model_len: int | None = None) -> PromptTokens:
        """The tokens of a chat body's `fields`. Raises `NotRenderable`."""
        if self._renderer is None:
            raise NotRenderable("the model's chat prompts are not rendered by a template")
        rendered = self._renderer.render(fields)
        special = _flag(fields, False)
        ids = self._encode(rendered.text, special)
        if rendered.rest is not None:
            rest = self._encode(rendered.rest, False)
            return PromptTokens(_settled(ids, self._encoder.special_ids), len(ids) + len(rest))
        return _whole(truncate(ids, fields, max_model_len))

    def text(self, text: str, fields: Mapping[str, Any], max_model_len: int | None = None) -> PromptTokens:
        """The tokens of a completion prompt. Raises `NotRenderable`."""
        if fields.get("suffix") is not None:
            raise NotRenderable("a suffix makes a fill-in-the-middle prompt, which the engine composes")
        return _whole(truncate(self._encode(text, _flag(fields, True)), fields, max_model_len))

    def _encode(self, text: str, special: bool) -> array[int]:
        try:
            return self._encoder.encode(text, add_special_tokens=special)
        except (ValueError, TypeError, RuntimeError) as error:
            # Unpaired surrogates, or a pattern's limit on hostile text.
            raise NotRenderable(f"the tokenizer refused: {type(error).__name__}") from None


def truncate(ids: array[int], fields: Mapping[str, Any], max_model_len: int | None) -> array[int]:
    """As vLLM's ``truncate_prompt_tokens``: that many from the left-cut end by default; -1 is what the model takes.

    Raises `NotRenderable` for a value that an engine refuses.
    """
    keep = fields.get("truncate_prompt_tokens")
    if keep is None:
        return ids
    side = fields.get("truncation_side") or "left"
    if type(keep) is not int or keep < -1 or side not in ("left", "right"):
        raise NotRenderable("truncate_prompt_tokens is not what an engine takes")
    if keep == -1:
        if max_model_len is None:
            raise NotRenderable("the model's length, to which the prompt is cut, is not known")
        keep = max_model_len - 1
    if keep >= len(ids):
        return ids
    return ids[len(ids) - keep :] if side == "left" else ids[:keep]


def _whole(ids: array[int]) -> PromptTokens:
    return PromptTokens(ids, len(ids))


def _settled(ids: array[int], special_ids: Set[int]) -> array[int]:
    """Up to and with the last added token: what comes after may merge with what the media put in its place."""
    for end in range(len(ids), 0, -1):
        if ids[end - 1] in special_ids:
            return ids[:end]
    return array("I")


def _flag(fields: Mapping[str, Any], default: bool) -> bool:
    value = fields.get("add_special_tokens", default)
    if type(value) is not bool:
        raise NotRenderable("add_special_tokens is not a boolean")
    return value
