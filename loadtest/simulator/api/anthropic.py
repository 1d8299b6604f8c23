"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the chat path."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from loadtest.simulator.api.chat import ChatAnswer, prepare
from loadtest.simulator.api.exchange import DEAD_EVENT, ApiError, Exchange, dead_error
from loadtest.simulator.api.generate import resolve_model
from loadtest.simulator.api.messages import chat_prompt
from loadtest.simulator.api.params import parse_json, require, require_list
from loadtest.simulator.driver import EngineDied, TransferFailed

STOP_REASONS = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(p.get("text", "")) for p in content or [] if isinstance(p, dict) and p.get("type") == "text")


def _messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Chat messages for one Anthropic message: its text, its tool calls, or the results of some."""
    content, role = message.get("content"), message.get("role")
    if isinstance(content, str) or content is None:
        return [{"role": role, "content": content}]
    calls, results, rest = [], [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": json.dumps(part.get("input") or {}, ensure_ascii=False)}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            results.append(
                {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _text(part.get("content"))}
            )
        else:
            rest.append(part)
    found: list[dict[str, Any]] = results
    if rest or calls:
        own: dict[str, Any] = {"role": role, "content": rest}
        found = [*results, {**own, "tool_calls": calls} if calls else own]
    return found


def _chat_body(body: dict[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _text(body["system"])})
    for message in require_list(body, "messages"):
        if not isinstance(message, dict):
            raise ApiError(400, "Each message must be an object with a role", param="messages")
        messages += _messages(message)
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
            },
        }
        for tool in body.get("tools") or []
        if isinstance(tool, dict)
    ]
    choice: Any = body.get("tool_choice") or {"type": "auto" if tools else "none"}
    kind = choice.get("type") if isinstance(choice, dict) else choice
    named = {"type": "function", "function": {"name": choice.get("name")}} if kind == "tool" else None
    kept = ("model", "temperature", "max_tokens", "stream", "seed", "kv_transfer_params", "ignore_eos")
    return {
        **{name: body[name] for name in kept if name in body},
        "messages": messages,
        "stop": body.get("stop_sequences"),
        "tools": tools or None,
        "tool_choice": named or {"any": "required"}.get(str(kind), kind),
    }


async def create_message(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    require(body, "max_tokens")
    answer = await prepare(ex, _chat_body(body))
    async with answer.generation:
        if answer.sampling.stream:
            await _stream(ex, answer)
        else:
            await _whole(ex, answer)


async def count_tokens(ex: Exchange) -> None:
    body = _chat_body(parse_json(ex.raw))
    resolve_model(ex.engine, body)
    count = len(await chat_prompt(ex.engine, body, body["messages"]))
    await ex.json({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _usage(answer: ChatAnswer) -> dict[str, int]:
    counts, cached = answer.generation.usage(), answer.generation.cached_tokens()
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "output_tokens": counts["completion_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _stop_reason(answer: ChatAnswer) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence) of a finished answer."""
    choice = answer.generation.choices[0]
    if isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    reason = "tool_calls" if 0 in answer.calls and choice.finish_reason == "stop" else choice.finish_reason
    return STOP_REASONS.get(reason or ""), None


async def _whole(ex: Exchange, answer: ChatAnswer) -> None:
    generation, choice = answer.generation, answer.generation.choices[0]
    await generation.submit()
    try:
        await generation.finish()
    except (EngineDied, TransferFailed):
        raise dead_error() from None
    call = answer.calls.get(0)
    block: dict[str, Any] = {"type": "text", "text": choice.text(answer.tokenizer, range(choice.sent))}
    if call is not None and choice.finish_reason != "length":
        block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)}
    await ex.json(
        {
            "id": generation.id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "model": answer.sampling.model,
            "stop_reason": _stop_reason(answer)[0],
            "usage": _usage(answer),
        }
    )


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))


async def _stream(ex: Exchange, answer: ChatAnswer) -> None:
    generation, choice, call = answer.generation, answer.generation.choices[0], answer.calls.get(0)
    await ex.start_sse()
    await generation.submit()
    try:
        while choice.finish_reason is None:
            await generation.grown()
            if not choice.opened:
                choice.opened = True
                await ex.chunk(_event("message_start", message=_opening(answer)))
                block: dict[str, Any] = {"type": "text", "text": ""}
                if call is not None:
                    block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
                await ex.chunk(_event("content_block_start", content_block=block, index=0))
            for delta in _deltas(answer, choice.take()):
                await ex.chunk(_event("content_block_delta", delta=delta, index=0))
    except (EngineDied, TransferFailed):
        await ex.chunk(DEAD_EVENT)
        await ex.end()
        return
    reason, sequence = _stop_reason(answer)
    await ex.chunk(_event("content_block_stop", index=0))
    end = {"stop_reason": reason, "stop_sequence": sequence}
    await ex.chunk(_event("message_delta", delta=end, usage=_usage(answer)))
    await ex.chunk(_event("message_stop"))
    await ex.end()


def _opening(answer: ChatAnswer) -> dict[str, Any]:
    generation = answer.generation
    return {
        "id": generation.id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": answer.sampling.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": generation.usage()["prompt_tokens"], "output_tokens": 0},
    }


def _deltas(answer: ChatAnswer, positions: range) -> list[dict[str, Any]]:
    call = answer.calls.get(0)
    if call is None:
        text = answer.generation.choices[0].text(answer.tokenizer, positions)
        return [{"type": "text_delta", "text": text}] if text else []
    parts = [delta["tool_calls"][0]["function"]["arguments"] for delta in call.deltas(positions)]
    return [{"type": "input_json_delta", "partial_json": part} for part in parts if part]
