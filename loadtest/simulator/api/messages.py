"""From chat messages, as clients send them, to the prompt's token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from loadtest.simulator.api.exchange import ApiError
from loadtest.simulator.node import SimEngine
from loadtest.simulator.text import TemplateError


def _content(content: Any) -> str:
    """A message's content as text: text parts are joined by line breaks, as vLLM does for templates that want a
    string.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, "Message content must be a string or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text", "refusal", "thinking"):
            texts.append(str(part.get("text") or part.get("refusal") or ""))
        elif isinstance(part, str):
            texts.append(part)
        else:
            noun = {"image_url": "image", "input_audio": "audio", "video_url": "video"}.get(str(kind), str(kind))
            raise ApiError(400, f"At most 0 {noun}(s) may be provided in one prompt.")
    return "\n".join(texts)


def _call(call: Any) -> dict[str, Any]:
    """A tool call with its arguments as a value, which is what templates expect."""
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            function["arguments"] = arguments
    return {**call, "function": function}


def normalize(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as the template gets them. Raises ApiError."""
    result = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "Each message must be an object with a role", param="messages")
        fields = {**message, "content": _content(message.get("content"))}
        if message.get("tool_calls"):
            fields["tool_calls"] = [_call(call) for call in message["tool_calls"] if isinstance(call, dict)]
        result.append(fields)
    return result


async def chat_prompt(engine: SimEngine, body: dict[str, Any], messages: Sequence[Any]) -> Sequence[int]:
    """Token ids of a chat: those that the client sent along, or the rendered and encoded messages. Raises ApiError."""
    params = body.get("kv_transfer_params")
    given = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if isinstance(given, list) and given and all(isinstance(i, int) for i in given):
        return tuple(given)
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    variables = dict(body.get("chat_template_kwargs") or {})
    tools = body.get("tools")
    if tools and body.get("tool_choice") != "none":
        variables["tools"] = tools
    variables["add_generation_prompt"] = body.get("add_generation_prompt", True) is not False
    chat = normalize(messages)
    try:
        text = engine.tokenizer.render(chat, **variables)
    except TemplateError as error:
        raise ApiError(400, str(error)) from error
    if body.get("continue_final_message"):
        # The last message is left open: what the template puts behind its content goes.
        last = chat[-1]["content"]
        text = text[: text.rindex(last) + len(last)] if last and last in text else text
    return await engine.tokenizer.encode(text, special=bool(body.get("add_special_tokens")))
