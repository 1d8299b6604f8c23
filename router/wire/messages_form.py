"""A ``/v1/messages`` body (Anthropic's API) as the chat request that an engine makes of it. PURE.

It is rendered by the same chat template as ``/v1/chat/completions``; how vLLM folds the blocks into messages decides
the prompt's text (vLLM 0.32, ``anthropic/serving``). None means that the prompt cannot be known here: blocks an engine
would refuse, or things not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from router.wire.shapes import UnknownShape, list_of, object_of, text_of

_BILLING_HEADER = "x-anthropic-billing-header"


def messages_to_chat(
    fields: Mapping[str, Any], *, system_first: bool, thinking_off_effort: str = "none"
) -> dict[str, Any] | None:
    """The chat fields of an Anthropic Messages body's `fields`.

    `system_first`: the chat template refuses a late system message, so all of them go in front as one.
    `thinking_off_effort`: the effort that stands for ``thinking: {"type": "disabled"}`` with this template.
    """
    try:
        messages: list[dict[str, Any]] = []
        turns = list_of(fields.get("messages"))
        system = _system_texts(fields.get("system"))
        if system_first:
            system += [_joined_system(turn) for turn in turns if _role(turn) == "system"]
        if any(system):
            messages.append({"role": "system", "content": "".join(system)})
        for turn in turns:
            _add_turn(turn, messages, system_first)
        return {
            "messages": messages,
            "tools": _anthropic_tools(fields.get("tools")),
            "chat_template_kwargs": fields.get("chat_template_kwargs"),
            "reasoning_effort": _anthropic_effort(fields, thinking_off_effort),
        }
    except UnknownShape:
        return None


def _system_texts(system: Any) -> list[str]:
    if not system:
        return []
    if type(system) is str:
        return [system]
    return list(_unmarked_texts(list_of(system)))


def _unmarked_texts(blocks: Iterable[Any]) -> Iterable[str]:
    """Text blocks without the one by which Claude Code marks each request (it would defeat every prefix cache)."""
    for block in map(object_of, blocks):
        if block.get("type") in ("tool_addition", "tool_removal"):
            raise UnknownShape
        text = block.get("text")
        if block.get("type") == "text" and text and not text_of(text).startswith(_BILLING_HEADER):
            yield text_of(text)


def _joined_system(turn: dict[str, Any]) -> str:
    content = turn.get("content")
    if type(content) is str:
        return "" if content.startswith(_BILLING_HEADER) else content
    return "".join(_unmarked_texts(list_of(content)))


def _add_turn(turn: dict[str, Any], messages: list[dict[str, Any]], system_first: bool) -> None:
    role = _role(turn)
    if role == "system":
        text = "" if system_first else _joined_system(turn)
        if text:
            messages.append({"role": "system", "content": text})
        return
    content = turn.get("content")
    if type(content) is str:
        messages.append({"role": role, "content": content})
        return
    made: dict[str, Any] = {"role": role}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in map(object_of, list_of(content)):
        _add_block(block, role, parts, calls, thoughts, messages)
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        made["content"] = parts[0]["text"]
    elif parts:
        made["content"] = parts
    if role != "user" or parts:
        messages.append(made)


def _add_block(
    block: dict[str, Any],
    role: str,
    parts: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    thoughts: list[str],
    messages: list[dict[str, Any]],
) -> None:
    kind = block.get("type")
    if kind == "text":
        if block.get("text"):
            parts.append({"type": "text", "text": text_of(block["text"])})
    elif kind == "image":
        if block.get("source"):
            parts.append({"type": "image_url", "image_url": _image_url(object_of(block["source"]))})
    elif kind == "thinking":
        if block.get("thinking") is not None:
            thoughts.append(text_of(block["thinking"]))
    elif kind == "tool_use":
        arguments = object_of(block.get("input") or {})
        function = {"name": block.get("name") or "", "arguments": arguments}
        calls.append({"id": block.get("id") or "", "type": "function", "function": function})
    elif kind == "tool_result":
        if role == "user":
            _add_tool_result(block, messages)
        else:
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
    elif kind not in ("redacted_thinking", "tool_reference"):
        raise UnknownShape


def _add_tool_result(block: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    content = block.get("content")
    texts = [content] if type(content) is str else []
    images: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    for item in content if type(content) is list else ():
        kind = item.get("type") if type(item) is dict else None
        if kind == "text":
            texts.append(text_of(item.get("text", "")))
        elif kind == "image":
            images.append({"type": "image_url", "image_url": _image_url(object_of(item.get("source", {})))})
        elif kind == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
            references.append({"type": "tool_reference", "name": text_of(name)})
    call_id = block.get("tool_use_id") or ""
    messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({"role": "tool", "tool_call_id": call_id, "content": references})


def _image_url(source: dict[str, Any]) -> dict[str, Any]:
    if source.get("type") == "url":
        return {"url": source.get("url", "")}
    return {"url": f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"}


def _anthropic_tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    made = []
    for tool in map(object_of, list_of(tools)):
        schema = dict(object_of(tool.get("input_schema")))
        schema.setdefault("type", "object")
        function = {
            "name": text_of(tool.get("name")),
            "description": tool.get("description"),
            "parameters": schema,
            "strict": tool.get("strict"),
            "defer_loading": tool.get("defer_loading"),
        }
        made.append({"type": "function", "function": function})
    return made


def _anthropic_effort(fields: Mapping[str, Any], thinking_off_effort: str) -> Any:
    thinking, output = fields.get("thinking"), fields.get("output_config")
    if type(thinking) is dict and thinking.get("type") == "disabled":
        return thinking_off_effort
    return output.get("effort") if type(output) is dict else None


def _role(turn: Any) -> str:
    role = object_of(turn).get("role")
    if role not in ("user", "assistant", "system"):
        raise UnknownShape
    return str(role)
