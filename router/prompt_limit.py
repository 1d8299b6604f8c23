"""PromptLimit: prompts that are refused before an engine is asked, as an engine would refuse them. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.core import Api, EndpointState, InferenceRequest, TokenizedPrompt, TokenSource
from router.errors import ContextTooLong

_PARAM = {Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.RESPONSES: "input", Api.MESSAGES: "messages"}
_EXACT = (TokenSource.CLIENT, TokenSource.LOCAL, TokenSource.ENGINE)


class PromptLimit(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int | None = None
    """Of one request, a batch of prompts together; an estimate where nobody can tell them. None: any number."""
    by_model: bool = False
    """Also what is longer than every serving engine's ``max_model_len``, where the count is exact."""

    def check(self, request: InferenceRequest, prompt: TokenizedPrompt, states: Sequence[EndpointState]) -> None:
        """Raises `ContextTooLong`."""
        count = prompt.token_count
        if self.tokens is not None and count > self.tokens:
            raise _too_long(request.api, count, self.tokens, " by limits.max_prompt_tokens")
        if self.by_model and prompt.source in _EXACT and _is_one_whole_prompt(request):
            longest = _longest(request.model, states)
            if longest is not None and count >= longest:
                raise _too_long(request.api, count, longest - 1, ", for the model's context has to hold an answer too")


NO_LIMIT = PromptLimit()


def _too_long(api: Api, count: int, most: int, why: str) -> ContextTooLong:
    return ContextTooLong(f"The prompt has {count} tokens and may have {most}{why}; shorten it.", param=_PARAM.get(api))


def _is_one_whole_prompt(request: InferenceRequest) -> bool:
    """Not a batch, whose prompts are counted together, and not one that the engine would cut to fit."""
    prompt = request.fields.get("prompt")
    batch = type(prompt) is list and len(prompt) > 1 and type(prompt[0]) in (list, str)
    cut = request.fields.get("truncate_prompt_tokens") is not None or request.fields.get("truncation") == "auto"
    return not batch and not cut


def _longest(model: str | None, states: Sequence[EndpointState]) -> int | None:
    """None when some engine does not tell: it may take more than the others."""
    longest = 0
    for state in states:
        cards = list(state.models.values())
        card = next(iter(cards), None) if model is None else state.models.get(model)
        if card is None or card.max_model_len is None:
            return None
        longest = max(longest, card.max_model_len)
    return longest or None
