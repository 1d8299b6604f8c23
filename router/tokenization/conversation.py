"""A chat request's messages and tools as vLLM hands them to the chat template. PURE.

Between the body and the template vLLM drops what its schema does not know, orders the rest, flattens or wraps content
parts by the template's content format, and decodes tool-call arguments. Each of these changes the text of some
template, so each is repeated here (vLLM 0.32, ``renderers/chat_utils`` and the request models).

Media are never fetched. A part that is not text is replaced by `MEDIA_MARK`, so that the text before it can be cut out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from router.tokenization.content_format import ContentFormat
from router.tokenization.errors import NotRenderable

MEDIA_MARK = "\ue0ff\uf8f0kvrouter-media\uf8f0\ue0ff"
"""Stands where a template would put an image's tokens. Private-use characters: no prompt holds it by accident."""

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_TYPES = frozenset(
    {
        "image_url",
        "input_image",
        "image_pil",
        "image_embeds",
        "audio_url",
        "input_audio",
        "audio_embeds",
        "video_url",
        "video_embeds",
        "prompt_embeds",
    }
)
_TEXTUAL = (*_TEXT_KEYS, "tool_reference")
_BILLING_HEADER = "x-anthropic-billing-header"


class Conversation(NamedTuple):
    """What the template sees as ``messages``, and whether `MEDIA_MARK` is somewhere in it."""

    messages: list[dict[str, Any]]
    has_media: bool


def build_conversation(messages: Any, content_format: ContentFormat) -> Conversation:
    """Raises `NotRenderable` for what an engine refuses, or what it can make sense of and we cannot."""
    if type(messages) is not list:
        raise NotRenderable("messages is not a list")
    built = []
    has_media = False
    for message in messages:
        made, media = _message(message, content_format)
        built.append(made)
        has_media = has_media or media
    return Conversation(built, has_media)


def build_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The ``tools`` of a chat request as vLLM's models print them: known fields only, in their order."""
    if tools is None:
        return None
    if type(tools) is not list:
        raise NotRenderable("tools is not a list")
    return [_tool(tool) for tool in tools]


def fold_developer_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer turns as system turns, and all system turns as one in front: for templates that know no developer."""
    system: list[str] = []
    others: list[dict[str, Any]] = []
    scattered = False
    turned = []
    for position, message in enumerate(messages):
        if message["role"] == "developer":
            message = {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        turned.append(message)
        if message["role"] != "system":
            others.append(message)
            continue
        scattered = scattered or position > 0
        if text := _plain_text(message.get("content", "")):
            system.append(text)
    return [{"role": "system", "content": "\n\n".join(system)}, *others] if scattered else turned


def holds_media(messages: Any) -> bool:
    """Whether some content part is other than text. Looks at shapes only, fetches and decodes nothing."""
    if type(messages) is not list:
        return False
    for message in messages:
        content = message.get("content") if type(message) is dict else None
        for part in content if type(content) is list else ():
            if type(part) is dict and (part.get("type", "text") not in _TEXTUAL or not _MEDIA_TYPES.isdisjoint(part)):
                return True
    return False


def _message(message: Any, content_format: ContentFormat) -> tuple[dict[str, Any], bool]:
    if type(message) is not dict or type(role := message.get("role")) is not str:
        raise NotRenderable("a message has no role")
    content = message.get("content")
    has_media = False
    made: dict[str, Any]
    if type(content) is str and content_format == "string" and not content.startswith(_BILLING_HEADER):
        made = {"role": role, "content": content}
    else:
        parts = _parts(content)
        if role == "system":
            parts = _without_billing_header(parts)
        built, has_media = _content(parts, content_format)
        made = {"role": role, "content": built}
    if role == "assistant":
        _add_assistant_fields(made, message)
    elif role == "tool":
        if "tool_call_id" in message:
            made["tool_call_id"] = message["tool_call_id"]
        if type(made["content"]) is list:
            made["content"] = _tool_content(made["content"])
    for key in ("name", "task"):
        if type(value := message.get(key)) is str:
            made[key] = value
    if role == "developer":
        made["tools"] = message.get("tools")
    return made, has_media


def _parts(content: Any) -> list[Any]:
    if content is None:
        return []
    if type(content) is str:
        return [content]
    if type(content) is list:
        return content
    raise NotRenderable("a message's content is neither text nor a list of parts")


def _content(parts: Iterable[Any], content_format: ContentFormat) -> tuple[str | list[dict[str, Any]], bool]:
    wrapped: list[dict[str, Any]] = []
    texts: list[str] = []
    has_media = False
    for part in parts:
        kind, value = _read_part(part)
        if kind == "media":
            has_media = True
            wrapped.append({"type": "text", "text": MEDIA_MARK})
        elif kind == "tool_reference":
            wrapped.append({"type": "tool_reference", "name": value})
            texts.append(value)
        elif value is not None:
            wrapped.append({"type": "text", "text": value})
            texts.append(value)
    if content_format == "openai":
        return wrapped, has_media
    # In string form vLLM puts the placeholders of all of a message's media in front of its text.
    flat = "\n".join(filter(None, texts))
    return (MEDIA_MARK + "\n" + flat if has_media else flat), has_media


def _read_part(part: Any) -> tuple[str, Any]:
    """``("text", text or None)``, ``("tool_reference", name)`` or ``("media", None)``."""
    if type(part) is str:
        return "text", part
    if type(part) is not dict:
        raise NotRenderable("a content part is neither text nor an object")
    kind = part.get("type")
    if type(kind) is str and kind in _TEXT_KEYS:
        text = part.get(_TEXT_KEYS[kind])
        if text is not None and type(text) is not str:
            raise NotRenderable("a text part holds no text")
        return "text", text
    if kind == "tool_reference" and type(part.get("name")) is str:
        return "tool_reference", part["name"]
    if (type(kind) is str and kind in _MEDIA_TYPES) or (kind is None and not _MEDIA_TYPES.isdisjoint(part)):
        return "media", None
    raise NotRenderable("a content part is of an unknown type")


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """Without the line by which Claude Code marks a request: vLLM drops it, since it changes on every request."""
    kept: list[Any] = []
    for part in parts:
        text = part.get("text") if type(part) is dict and part.get("type") == "text" else part
        if not (type(text) is str and text.startswith(_BILLING_HEADER)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest)
    return kept


def _tool_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    # Templates print a tool's answer as text; references to tools stay parts, for the template to expand.
    if any(part["type"] != "text" or part["text"] == MEDIA_MARK for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _add_assistant_fields(made: dict[str, Any], message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise NotRenderable("tool_calls is not a list")
        if calls:
            made["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        # vLLM sets the first two, transformers adds the third for templates that read it.
        made["reasoning"] = made["reasoning_content"] = made["thinking"] = reasoning


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict or call.get("type", "function") != "function":
        raise NotRenderable("a tool call is not a function call")
    made: dict[str, Any] = {}
    if "id" in call:
        made["id"] = call["id"]
    made["function"] = {"arguments": _arguments(function.get("arguments"))}
    if "name" in function:
        made["function"]["name"] = function["name"]
    made["type"] = "function"
    return made


def _arguments(arguments: Any) -> dict[str, Any]:
    """The object that templates print; anything that is none counts as empty, as in vLLM."""
    if type(arguments) is str and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if type(arguments) is dict else {}


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if type(tool) is dict else None
    if type(function) is not dict or type(function.get("name")) is not str:
        raise NotRenderable("a tool is not a function with a name")
    printed = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    if function.get("strict") is not None:
        printed["strict"] = function["strict"]
    deferred = function.get("defer_loading")
    if deferred is None:
        deferred = tool.get("defer_loading")
    if deferred is not None:
        printed["defer_loading"] = deferred
    made: dict[str, Any] = {"type": "function", "function": printed}
    if tool.get("defer_loading") is not None:
        made["defer_loading"] = tool["defer_loading"]
    return made


def _plain_text(content: Any) -> str:
    if type(content) is str:
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
