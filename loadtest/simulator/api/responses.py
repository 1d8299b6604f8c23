"""/v1/responses: OpenAI's Responses API over the chat path.

Finished responses are remembered, and answered by id, on this engine alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from loadtest.simulator.api.chat import ChatAnswer, prepare
from loadtest.simulator.api.exchange import ApiError, Exchange, dead_error
from loadtest.simulator.api.generate import Choice
from loadtest.simulator.api.params import parse_json, require
from loadtest.simulator.driver import EngineDied, TransferFailed
from loadtest.simulator.node import SimEngine, fresh_id

REMEMBERED = 1000


def _not_found(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id}' not found.", "NotFoundError", "response_id")


def _item_messages(item: Any) -> list[dict[str, Any]]:
    """Chat messages for one input item."""
    if not isinstance(item, dict):
        raise ApiError(400, "input must be a string or a list of items", param="input")
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}]
    if kind == "reasoning":
        return []
    role = {"developer": "system"}.get(str(item.get("role")), str(item.get("role", "user")))
    return [{"role": role, "content": item.get("content")}]


def _chat_body(engine: SimEngine, body: dict[str, Any]) -> dict[str, Any]:
    """The same request as a chat: instructions, what came before, then the input."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    previous = body.get("previous_response_id")
    if previous is not None:
        if previous not in engine.responses:
            raise _not_found(str(previous))
        messages += engine.responses[previous]["messages"]
    given = require(body, "input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise ApiError(400, "input must be a string or a list of items", param="input")
    for item in items:
        messages += _item_messages(item)
    tools = [
        {"type": "function", "function": {k: tool[k] for k in ("name", "description", "parameters") if k in tool}}
        for tool in body.get("tools") or []
        if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    choice = body.get("tool_choice", "auto" if tools else "none")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    kept = ("model", "temperature", "seed", "cache_salt", "priority", "kv_transfer_params", "ignore_eos")
    return {
        **{name: body[name] for name in kept if name in body},
        "messages": messages,
        "max_completion_tokens": body.get("max_output_tokens"),
        "tools": tools or None,
        "tool_choice": choice,
    }


class ResponseAnswer:
    """One response: its object at any moment, and the items of its output."""

    def __init__(self, answer: ChatAnswer, body: dict[str, Any], chat: dict[str, Any]) -> None:
        self.answer = answer
        self.body = body
        self.messages: list[dict[str, Any]] = chat["messages"]
        self.id = answer.generation.id
        self.choice: Choice = answer.generation.choices[0]
        self.call = answer.calls.get(0)
        self.item_id = f"fc_{fresh_id()}" if self.call is not None else f"msg_{fresh_id()}"

    @property
    def text(self) -> str:
        return self.choice.text(self.answer.tokenizer, range(self.choice.sent))

    def item(self, status: str) -> dict[str, Any]:
        """The output item: a message or a function call, empty while in progress."""
        done = status != "in_progress"
        if self.call is not None:
            return {
                "arguments": self.call.arguments if done else "",
                "call_id": self.call.call_id,
                "name": self.call.name,
                "type": "function_call",
                "id": self.item_id,
                "status": status,
            }
        content = [self.part()] if done else []
        fields = {"id": self.item_id, "content": content, "role": "assistant", "status": status, "type": "message"}
        return {**fields, "phase": None}

    def part(self, *, empty: bool = False) -> dict[str, Any]:
        if empty:
            return {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return {"annotations": [], "text": self.text, "type": "output_text", "logprobs": None}

    def view(self, status: str) -> dict[str, Any]:
        """The response object, in vLLM's order of fields."""
        body, over = self.body, status not in ("queued", "in_progress")
        wanted = self.answer.sampling
        cut = status == "incomplete"
        return {
            "id": self.id,
            "created_at": self.answer.generation.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": wanted.model,
            "object": "response",
            "output": [self.item("completed")] if over and status != "cancelled" else [],
            "parallel_tool_calls": True,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "none" if not body.get("tools") else "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "background": bool(body.get("background")),
            "max_output_tokens": wanted.max_tokens,
            "max_tool_calls": body.get("max_tool_calls"),
            "previous_response_id": body.get("previous_response_id"),
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": "auto",
            "status": status,
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage() if over else None,
            "user": body.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": self.answer.generation.hand_off_params() if over else None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def final_status(self) -> str:
        return {"length": "incomplete", "abort": "cancelled"}.get(self.choice.finish_reason or "", "completed")

    def _usage(self) -> dict[str, Any]:
        counts = self.answer.generation.usage()
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": self.answer.generation.cached_tokens(),
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": counts["total_tokens"],
        }


def _remember(engine: SimEngine, response: ResponseAnswer, view: dict[str, Any]) -> None:
    if response.body.get("store") is False:
        return
    said: dict[str, Any] = {"role": "assistant", "content": "" if response.call else response.text}
    if response.call is not None:
        said["tool_calls"] = [response.call.message()]
    engine.responses.pop(response.id, None)
    engine.responses[response.id] = {"view": view, "messages": [*response.messages, said]}
    while len(engine.responses) > REMEMBERED:
        del engine.responses[next(iter(engine.responses))]


async def create_response(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    chat = _chat_body(ex.engine, body)
    request_id = ex.given_request_id or body.get("request_id") or fresh_id()
    identity = str(request_id) if str(request_id).startswith("resp_") else f"resp_{request_id}"
    answer = await prepare(ex, chat, identity)
    response = ResponseAnswer(answer, body, chat)
    if body.get("background"):
        view = response.view("queued")
        _remember(ex.engine, response, view)
        ex.engine.spawn(response.id, _in_background(ex.engine, response))
        await ex.json(view)
        return
    async with answer.generation:
        if body.get("stream"):
            await _stream(ex, response)
            return
        await answer.generation.submit()
        await _finish(response)
        view = response.view(response.final_status())
        _remember(ex.engine, response, view)
        await ex.json(view)


async def _finish(response: ResponseAnswer) -> None:
    try:
        await response.answer.generation.finish()
    except (EngineDied, TransferFailed):
        raise dead_error() from None


async def _in_background(engine: SimEngine, response: ResponseAnswer) -> None:
    status = "cancelled"
    try:
        async with response.answer.generation as generation:
            await generation.submit()
            await generation.finish()
            status = response.final_status()
    except (EngineDied, TransferFailed):
        status = "failed"
    finally:
        _remember(engine, response, response.view(status))


async def get_response(ex: Exchange, response_id: str) -> None:
    found = ex.engine.responses.get(response_id)
    if found is None:
        raise _not_found(response_id)
    await ex.json(found["view"])


async def cancel_response(ex: Exchange, response_id: str) -> None:
    found = ex.engine.responses.get(response_id)
    if found is None:
        raise _not_found(response_id)
    task = ex.engine.background.get(response_id)
    if task is None:
        raise ApiError(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await ex.json(ex.engine.responses[response_id]["view"])


async def _stream(ex: Exchange, response: ResponseAnswer) -> None:
    await ex.start_sse()
    number = 0
    async for name, fields in _events(response):
        # vLLM sends an event's fields in alphabetical order.
        event = dict(sorted({**fields, "sequence_number": number, "type": name}.items()))
        number += 1
        await ex.chunk(b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(event)))
    _remember(ex.engine, response, response.view(response.final_status()))
    await ex.end()


async def _events(response: ResponseAnswer) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    generation, choice = response.answer.generation, response.choice
    where = {"item_id": response.item_id, "output_index": 0}
    yield "response.created", {"response": response.view("in_progress")}
    yield "response.in_progress", {"response": response.view("in_progress")}
    await generation.submit()
    opened = False
    try:
        while choice.finish_reason is None:
            await generation.grown()
            positions = choice.take()
            if not opened:
                opened = True
                yield "response.output_item.added", {"item": response.item("in_progress"), "output_index": 0}
                if response.call is None:
                    part = {"content_index": 0, **where, "part": response.part(empty=True)}
                    yield "response.content_part.added", part
            if response.call is not None:
                for delta in response.call.deltas(positions):
                    text = delta["tool_calls"][0]["function"]["arguments"]
                    if text:
                        yield "response.function_call_arguments.delta", {"delta": text, **where}
            elif positions:
                text = choice.text(response.answer.tokenizer, positions)
                fields = {"content_index": 0, "delta": text, "logprobs": [], **where}
                yield "response.output_text.delta", fields
    except (EngineDied, TransferFailed):
        yield "response.failed", {"response": response.view("failed")}
        return
    if response.call is not None:
        done = {"arguments": response.call.arguments, "name": response.call.name, **where}
        yield "response.function_call_arguments.done", done
    else:
        fields = {"content_index": 0, "logprobs": [], "text": response.text, **where}
        yield "response.output_text.done", fields
        yield "response.content_part.done", {"content_index": 0, **where, "part": response.part()}
    yield "response.output_item.done", {"item": response.item("completed"), "output_index": 0}
    yield "response.completed", {"response": response.view(response.final_status())}
