"""A ``/v1/responses`` body as the chat request that an engine makes of it. PURE.

It is rendered by the same chat template as ``/v1/chat/completions``; how vLLM folds the items into messages decides the
prompt's text (vLLM 0.32, ``responses/utils``). None means that the prompt cannot be known here: history that only an
engine holds, items it would refuse, things not modelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from router.wire.shapes import UnknownShape, list_of, object_of, text_of

_NAMESPACE_SEPARATOR = "__"
_UNFINISHED = ("in_progress", "incomplete")


def responses_to_chat(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The chat fields of a Responses body's `fields`."""
    if fields.get("previous_response_id") is not None or fields.get("previous_input_messages"):
        return None
    try:
        messages = _responses_messages(fields.get("instructions"), fields.get("input"))
        tools = _responses_tools(fields.get("tools"))
    except UnknownShape:
        return None
    continued = _continues(fields.get("input"))
    reasoning = fields.get("reasoning")
    made: dict[str, Any] = {
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": not continued,
        "continue_final_message": continued,
        "chat_template_kwargs": fields.get("chat_template_kwargs"),
        "reasoning_effort": reasoning.get("effort") if type(reasoning) is dict else None,
    }
    if fields.get("truncation") not in (None, "disabled"):
        made["truncate_prompt_tokens"] = -1
    return made


def _responses_messages(instructions: Any, given: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": text_of(instructions)})
    if type(given) is str:
        messages.append({"role": "user", "content": given})
        return messages
    # Items fold only into messages that come from items, never into the instructions.
    folded: list[dict[str, Any]] = []
    for item in list_of(given):
        _add_item(object_of(item), folded)
    return messages + folded


def _add_item(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    kind = item.get("type")
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    if kind in ("function_call", "custom_tool_call"):
        call = _item_call(item)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last["tool_calls"] = [*list_of(last.get("tool_calls") or []), call]
    elif kind == "reasoning":
        _fold(last, messages, "reasoning", _item_reasoning(item))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif item.get("role") == "assistant" and (text := _assistant_text(item.get("content"))) is not None:
        _fold(last, messages, "content", text)
    elif type(item.get("role")) is str and kind in (None, "message"):
        messages.append(dict(item))
    else:
        raise UnknownShape


def _fold(last: dict[str, Any] | None, messages: list[dict[str, Any]], key: str, text: str) -> None:
    """One assistant turn may be spread over several items: fill what the last message has not yet."""
    if last is not None and last.get(key) is None:
        last[key] = text
    else:
        messages.append({"role": "assistant", key: text})


def _item_call(item: dict[str, Any]) -> dict[str, Any]:
    name = text_of(item.get("name"))
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    else:
        arguments = text_of(item.get("arguments"))
        if namespace := item.get("namespace"):
            name = f"{text_of(namespace)}{_NAMESPACE_SEPARATOR}{name}"
    return {"id": item.get("call_id"), "function": {"name": name, "arguments": arguments}, "type": "function"}


def _item_reasoning(item: dict[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise UnknownShape
    for key in ("content", "summary"):
        if parts := item.get(key):
            return text_of(object_of(list_of(parts)[0]).get("text"))
    return ""


def _assistant_text(content: Any) -> str | None:
    if type(content) is str:
        return content
    if type(content) is list and content:
        # vLLM takes the first part only.
        text = object_of(content[0]).get("text")
        return text if type(text) is str else None
    return None


def _continues(given: Any) -> bool:
    if type(given) is not list or not given or type(given[-1]) is not dict:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _responses_tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    made = []
    for tool in list_of(tools):
        tool = object_of(tool)
        if tool.get("type") == "function":
            made.append(_flat_tool(tool, text_of(tool.get("name"))))
        elif tool.get("type") == "namespace":
            made += [
                _flat_tool(inner, f"{text_of(tool.get('name'))}{_NAMESPACE_SEPARATOR}{text_of(inner.get('name'))}")
                for inner in map(object_of, list_of(tool.get("tools")))
                if inner.get("type") == "function"
            ]
        elif tool.get("type") == "custom":
            made.append(_custom_tool(tool))
    return made


def _flat_tool(tool: dict[str, Any], name: str) -> dict[str, Any]:
    return {"type": "function", "function": {**{key: tool[key] for key in tool if key != "type"}, "name": name}}


def _custom_tool(tool: dict[str, Any]) -> dict[str, Any]:
    # A free-form tool is shown to the model as a function of one string.
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
        "required": ["input"],
        "additionalProperties": False,
    }
    described = {"name": text_of(tool.get("name")), "description": tool.get("description"), "parameters": parameters}
    return {"type": "function", "function": described}
