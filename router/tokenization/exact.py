"""A request's prompt as exact tokens, from what the client sent or with a local tokenizer. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from router.core import Api
from router.tokenization.errors import NotRenderable
from router.tokenization.local import LocalTokenizer, PromptTokens
from router.wire.messages_form import messages_to_chat
from router.wire.responses_form import responses_to_chat


def client_tokens(fields: Mapping[str, Any]) -> PromptTokens | None:
    """Of a completion's `fields` whose prompt is token ids, or a list of such prompts; None when it is text.

    Ids that no vocabulary has are the engine's to refuse: the prompt then counts but has no ids.
    """
    prompt = fields.get("prompt")
    if type(prompt) is not list or not prompt:
        return None
    if type(prompt[0]) in (int, float):
        return _ids(prompt)
    if type(prompt[0]) is list:
        return longest([_ids(one) if type(one) is list else PromptTokens(array("I"), 0) for one in prompt])
    return None


def local_tokens(
    tokenizer: LocalTokenizer, api: Api, fields: Mapping[str, Any], max_model_len: int | None = None
) -> PromptTokens:
    """With the model's own tokenizer and template. Raises `NotRenderable`."""
    if api is Api.COMPLETIONS:
        prompt = fields.get("prompt")
        if fields.get("prompt_embeds") is not None:
            raise NotRenderable("a prompt of embeddings has no tokens")
        if type(prompt) is str:
            return tokenizer.text(prompt, fields, max_model_len)
        if type(prompt) is list and prompt and all(type(one) is str for one in prompt):
            return longest([tokenizer.text(one, fields, max_model_len) for one in prompt])
        raise NotRenderable("the prompt is neither text nor token ids")
    form = chat_form(
        api,
        fields,
        system_first=api is Api.MESSAGES and tokenizer.system_first(fields.get("tools")),
        thinking_off_effort=tokenizer.thinking_off_effort if api is Api.MESSAGES else "none",
    )
    if form is None:
        raise NotRenderable("the request cannot be put as a chat")
    return tokenizer.chat(form, max_model_len)


def chat_form(
    api: Api, fields: Mapping[str, Any], *, system_first: bool, thinking_off_effort: str
) -> Mapping[str, Any] | None:
    """The chat body's fields for a request of any chat-like API; None when it cannot be known."""
    if api is Api.CHAT:
        return fields
    if api is Api.RESPONSES:
        return responses_to_chat(fields)
    if api is Api.MESSAGES:
        return messages_to_chat(fields, system_first=system_first, thinking_off_effort=thinking_off_effort)
    return None


def longest(prompts: list[PromptTokens]) -> PromptTokens:
    """A batch as one: the ids of its longest prompt (the one that most is to be saved on) and the sum of all counts."""
    best = max(prompts, key=lambda one: len(one.ids))
    return PromptTokens(best.ids, sum(one.total for one in prompts))


def _ids(prompt: list[Any]) -> PromptTokens:
    try:
        return PromptTokens(array("I", prompt), len(prompt))
    except (OverflowError, TypeError, ValueError):
        return PromptTokens(array("I"), len(prompt))
