"""Reading a request body: only what routing and rendering need, in one decode. PURE.

The body itself stays bytes and goes upstream as it came. What is read here is kept in the JSON type the client sent:
a wrong type is the engine's to refuse, and here only means that the field is not used. The router refuses what no
engine could read either: bytes that are not JSON, or JSON that is not an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from router.core import Api
from router.errors import InvalidRequest

_TRANSFER_KEYS = ("kv_transfer_params", "ec_transfer_params")
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})

RENDER_FIELDS: Mapping[Api, tuple[str, ...]] = MappingProxyType(
    {
        Api.CHAT: (
            "messages",
            "tools",
            "tool_choice",
            "documents",
            "chat_template",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "add_special_tokens",
            "reasoning_effort",
            "truncate_prompt_tokens",
            "truncation_side",
        ),
        Api.COMPLETIONS: (
            "prompt",
            "prompt_embeds",
            "suffix",
            "add_special_tokens",
            "truncate_prompt_tokens",
            "truncation_side",
        ),
        Api.RESPONSES: (
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "reasoning",
            "chat_template_kwargs",
            "previous_response_id",
            "previous_input_messages",
            "truncation",
        ),
        Api.MESSAGES: (
            "messages",
            "system",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "chat_template_kwargs",
        ),
        Api.OTHER: (),
    }
)
"""What a prompt is rendered from, by API; what `Parsed.fields` may hold."""

# First present wins: the newer name of OpenAI's two is the one that counts in vLLM.
_MAX_TOKENS = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
    Api.OTHER: (),
}
GENERATE_PATH = "/inference/v1/generate"
"""vLLM's token-in, token-out interface: forwarded, but read, for what steers KV transfer must not pass unseen."""
_COMMON = ("model", "stream", "stream_options", "cache_salt", "n", "priority", "vllm_xargs", *_TRANSFER_KEYS)


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a body."""

    model: str | None = None
    """None: absent, null, or not a string; the engine then serves its default model or refuses."""
    stream: bool = False
    max_tokens: int | None = None
    """Output tokens asked for at most, under whichever name the API gives it."""
    cache_salt: str | None = None
    n: int = 1
    priority: int | None = None
    has_priority: bool = False
    """The body asks for some, in a form that can be read here or not."""
    include_usage: bool = False
    """The client asked for the usage chunk of a stream itself."""
    has_stream_options: bool = False
    has_kv_transfer_params: bool = False
    """The body steers KV transfer (`router.wire.kv_transfer.strip_transfer_params` takes that out)."""
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The members in `RENDER_FIELDS` that the client sent, decoded."""


NOTHING = Parsed()


def _decoder(api: Api) -> msgspec.json.Decoder[Any]:
    names = dict.fromkeys((*_COMMON, *_MAX_TOKENS[api], *RENDER_FIELDS[api]))
    struct = msgspec.defstruct(f"{api.name.title()}Body", [(name, Any, msgspec.UNSET) for name in names])
    return msgspec.json.Decoder(struct)


# A struct of the wanted members skips all others (logit_bias, response_format, embeddings) without building them.
_DECODERS = {api: _decoder(api) for api in Api}


def parse_request(api: Api, path: str, body: bytes, *, content_type: str = "application/json") -> Parsed:
    """Reads `body` once. `path` is only for the sentence of a refusal.

    Raises `InvalidRequest` for what is not a JSON object. For `Api.OTHER` anything may pass (an upload is a form):
    what cannot be read there gives `NOTHING`, and a form's ``model`` part is looked for. `GENERATE_PATH` is the
    exception: it must be an object.
    """
    must_be_read = api is not Api.OTHER or path == GENERATE_PATH
    if not must_be_read and not _is_json(content_type):
        return Parsed(model=form_model(body, content_type))
    try:
        read = _DECODERS[api].decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if not must_be_read:
            return NOTHING
        raise InvalidRequest(_why_unreadable(path, body, error)) from None
    return Parsed(
        model=_text(read.model),
        stream=_truth(read.stream),
        max_tokens=_first_count(read, _MAX_TOKENS[api]),
        cache_salt=_text(read.cache_salt),
        n=_count(read.n) or 1,
        priority=_whole(read.priority),
        has_priority=read.priority is not msgspec.UNSET and read.priority is not None,
        include_usage=type(read.stream_options) is dict and _truth(read.stream_options.get("include_usage")),
        has_stream_options=read.stream_options is not msgspec.UNSET,
        has_kv_transfer_params=_steers_transfer(read),
        fields={name: value for name in RENDER_FIELDS[api] if (value := getattr(read, name)) is not msgspec.UNSET},
    )


def form_model(body: bytes, content_type: str) -> str | None:
    """The ``model`` part of a multipart or urlencoded form, else None. Looks at names only, stops at the first."""
    kind = content_type.lower()
    if kind.startswith("multipart/form-data"):
        part = _FORM_PART.search(body)
        return _ascii_text(part.group(1)) if part else None
    if kind.startswith("application/x-www-form-urlencoded"):
        pair = _URLENCODED.search(body)
        return _ascii_text(pair.group(1)) if pair else None
    return None


_FORM_PART = re.compile(
    rb'content-disposition:[^\r\n]{0,200}\bname="?model"?[ \t]*(?:;[^\r\n]{0,200})?\r\n'
    rb"(?:[^\r\n]{1,200}\r\n){0,5}\r\n([^\r\n]{1,300})\r\n",
    re.IGNORECASE,
)
_URLENCODED = re.compile(rb"(?:^|&)model=([^&]{1,300})")


def _is_json(content_type: str) -> bool:
    kind = content_type.split(";", 1)[0].strip().lower()
    return kind in ("", "application/json") or kind.endswith("+json")


def _why_unreadable(path: str, body: bytes, error: Exception) -> str:
    where = path.split("?", 1)[0]
    if not body.strip():
        return f"{where} needs a JSON object as its body, and the body is empty."
    if isinstance(error, RecursionError):
        return "The body's JSON is nested too deeply."
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):
        return "The body is not valid UTF-8."
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "The body begins with a byte order mark: send plain UTF-8 JSON without one."
    if isinstance(error, msgspec.ValidationError):
        if "out of range" in str(error):
            return "The body holds a number that is out of range."
        return f"{where} needs a JSON object as its body, not another JSON value."
    if "surrogate" in str(error) or _HALF_PAIR.search(body):
        return "The body is not valid JSON: it holds half of a surrogate pair, like \\ud83d alone."
    return "The body is not valid JSON."


def _steers_transfer(read: Any) -> bool:
    if any(getattr(read, key) is not msgspec.UNSET for key in _TRANSFER_KEYS):
        return True
    # vLLM merges vllm_xargs into the same extra arguments, so they are a second door to the connector.
    return type(read.vllm_xargs) is dict and any(key in read.vllm_xargs for key in _TRANSFER_KEYS)


def _text(value: Any) -> str | None:
    return value if type(value) is str and value else None


def _truth(value: Any) -> bool:
    """As vLLM's validation reads a flag: ``true``, 1 and the usual words for yes."""
    if type(value) is str:
        return value.lower() in _TRUE_WORDS
    return value is True or (type(value) in (int, float) and value == 1)


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) < 19 and _WHOLE.fullmatch(value):
        return int(value)
    return None


def _count(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and number > 0 else None


def _first_count(read: Any, names: tuple[str, ...]) -> int | None:
    for name in names:
        if (number := _count(getattr(read, name))) is not None:
            return number
    return None


def _ascii_text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8").strip() or None
    except UnicodeDecodeError:
        return None
