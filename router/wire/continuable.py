"""Whether a broken stream of this request may be taken up by another engine, and by what terms. PURE.

Exact is a continuation when the model goes on from the very tokens that the client has, under the very parameters: the
next engine is then given them as its prompt (`router.wire.continued`). That leaves out whatever looks back at the
output alone, or keeps a state beside the tokens: stop strings (text is held back that may become one), penalties on
output, a seed (its random numbers would begin anew), logprobs, echo, structured output, tools, several choices. What
a request may hold is named here; one with anything else is not continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from router.core import Api, InferenceRequest

_DEFAULT_COMPLETION_TOKENS: Final = 16
"""What an engine takes for the absent ``max_tokens`` of a completion."""

CARRIED: Final = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
    "user",
    "cache_salt",
    "priority",
)
"""Members that hold for each token alone, or for prompt and output together: they go into the next body as they are."""

_HARMLESS: Final = frozenset(
    {
        *CARRIED,
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "return_token_ids",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "documents",
        "reasoning_effort",
        "truncate_prompt_tokens",
        "truncation_side",
        "include_stop_str_in_output",
        "parallel_tool_calls",
        "metadata",
        "store",
        "service_tier",
        "request_id",
    }
)
_NEUTRAL: Final[Mapping[str, tuple[bytes, ...]]] = MappingProxyType(
    {
        "n": (b"1",),
        "best_of": (b"1",),
        "echo": (b"false",),
        "suffix": (b'""',),
        "stop": (b"[]", b'""'),
        "bad_words": (b"[]",),
        "logprobs": (b"false",),
        "top_logprobs": (b"0",),
        "presence_penalty": (b"0", b"0.0"),
        "frequency_penalty": (b"0", b"0.0"),
        "use_beam_search": (b"false",),
        "tools": (b"[]",),
        "tool_choice": (b'"none"', b'"auto"'),
        "response_format": (b'{"type":"text"}', b'{"type": "text"}'),
    }
)
"""Members that change nothing with these values (or null)."""
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_numbers = msgspec.json.Decoder(int | float | None)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_options = msgspec.json.Decoder(_StreamOptions | None)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a continuation must keep to."""

    api: Api
    carried: Mapping[str, bytes]
    """Members of the client's body, raw JSON."""
    max_tokens: int | None
    """None: as many as the model's length leaves."""
    min_tokens: int = 0
    include_usage: bool = False
    continuous_usage: bool = False
    shows_ids: bool = False
    """The client asked for token ids itself, and gets them."""


def terms_of(request: InferenceRequest, body: bytes) -> Terms | None:
    """None: not to be continued exactly, as far as the request tells. `body`: as the engine got it."""
    if request.api not in (Api.CHAT, Api.COMPLETIONS) or not request.stream or request.n != 1:
        return None
    if not _one_text(request):
        return None
    try:
        members = {name: bytes(raw) for name, raw in _members.decode(body).items()}
        if not all(_harmless(name, raw) for name, raw in members.items()):
            return None
        seed, temperature = _number(members, "seed"), _number(members, "temperature")
        options = _options.decode(members.get("stream_options", b"null"))
        min_tokens = _number(members, "min_tokens")
        limit = next(
            (found for name in _limits(request.api) if (found := _number(members, name)) is not None),
            None if request.api is Api.CHAT else _DEFAULT_COMPLETION_TOKENS,
        )
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if seed is not None and temperature != 0:
        return None
    usage = options is not None and bool(options.include_usage)
    return Terms(
        api=request.api,
        carried={name: members[name] for name in CARRIED if name in members},
        max_tokens=None if limit is None else int(limit),
        min_tokens=int(min_tokens or 0),
        include_usage=usage,
        continuous_usage=usage and options is not None and bool(options.continuous_usage_stats),
        shows_ids=members.get("return_token_ids") == b"true",
    )


def _limits(api: Api) -> tuple[str, ...]:
    return ("max_completion_tokens", "max_tokens") if api is Api.CHAT else ("max_tokens",)


def _harmless(name: str, raw: bytes) -> bool:
    return name in _HARMLESS or raw == b"null" or raw in _NEUTRAL.get(name, ())


def _number(members: Mapping[str, bytes], name: str) -> float | None:
    number: float | None = _numbers.decode(members.get(name, b"null"))
    return number


def _one_text(request: InferenceRequest) -> bool:
    """One prompt that is all in its tokens: no batch, no embeddings, no pictures."""
    fields = request.fields
    if request.api is Api.COMPLETIONS:
        prompt = fields.get("prompt")
        if type(prompt) is list:
            return bool(prompt) and type(prompt[0]) is int
        return type(prompt) is str
    messages = fields.get("messages")
    return type(messages) is list and all(map(_plain, messages))


def _plain(message: Any) -> bool:
    if type(message) is not dict:
        return False
    content = message.get("content")
    if type(content) is not list:
        return content is None or type(content) is str
    return all(type(part) is dict and part.get("type") in _TEXT_PARTS for part in content)
