"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.simulator.api.exchange import DEAD_EVENT, DONE_EVENT, Exchange, dead_error
from loadtest.simulator.api.generate import (
    Choice,
    Generation,
    Plan,
    check_prompt,
    plan_given,
    plan_text,
    resolve_model,
    wanted_json,
)
from loadtest.simulator.api.logprobs import chat_logprobs
from loadtest.simulator.api.messages import chat_prompt
from loadtest.simulator.api.params import Sampling, number, parse_json, require_list, sampling
from loadtest.simulator.api.tools import ToolCall, plan_tool_call, wanted_tool
from loadtest.simulator.driver import EngineDied, TransferFailed
from loadtest.simulator.node import FINGERPRINT, SimEngine, fresh_id
from loadtest.simulator.sampler import make_rng


class ChatAnswer:
    """A chat request with its plans: common to the streamed and the whole form."""

    def __init__(self, generation: Generation, body: dict[str, Any], calls: dict[int, ToolCall]) -> None:
        self.generation = generation
        self.calls = calls
        self.sampling = generation.sampling
        self.tokenizer = generation.engine.tokenizer
        wanted = bool(body.get("logprobs"))
        self.logprobs = (number(body, "top_logprobs") or 0) if wanted else None

    def logprobs_of(self, choice: Choice, positions: range) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, choice.ids(positions), self.logprobs)


async def prepare(ex: Exchange, body: dict[str, Any], response_id: str | None = None) -> ChatAnswer:
    """Check a chat body, render and encode it, and plan its answer. Raises ApiError."""
    engine = ex.engine
    messages = require_list(body, "messages")
    model, lora = resolve_model(engine, body)
    wanted = sampling(body, model, engine.max_model_len)
    prompt = await chat_prompt(engine, body, messages)
    check_prompt(engine, prompt)
    request_id = ex.given_request_id or body.get("request_id") or fresh_id()
    generation = Generation(ex, response_id or f"chatcmpl-{request_id}", wanted, lora)
    calls: dict[int, ToolCall] = {}
    for index in range(wanted.n):
        plan, call = plan_chat(engine, body, messages, prompt, wanted, index)
        if call is not None:
            calls[index] = call
        generation.add(prompt, plan)
    generation.admit()
    return ChatAnswer(generation, body, calls)


def plan_chat(
    engine: SimEngine, body: dict[str, Any], messages: list[Any], prompt: Sequence[int], wanted: Sampling, index: int
) -> tuple[Plan, ToolCall | None]:
    """What choice `index` answers: a tool call, JSON or prose."""
    rng = make_rng(engine.config.seed, prompt, f"{wanted.seed}:{index}:form")
    tool, reason = wanted_tool(body, messages, rng)
    if tool is not None:
        call = plan_tool_call(engine.tokenizer, tool, rng)
        plan = plan_given(engine, call.token_ids, prompt, wanted, reason)
        return plan, call
    text = wanted_json(body, rng)
    if text is not None:
        return plan_given(engine, engine.tokenizer.encode_now(text, special=False), prompt, wanted), None
    return plan_text(engine, prompt, wanted, index), None


async def chat_completions(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    answer = await prepare(ex, body)
    async with answer.generation:
        if answer.sampling.stream:
            await _stream(ex, answer)
        else:
            await _whole(ex, answer)


async def _whole(ex: Exchange, answer: ChatAnswer) -> None:
    generation = answer.generation
    await generation.submit()
    try:
        await generation.finish()
    except (EngineDied, TransferFailed):
        raise dead_error() from None
    await ex.json(whole_body(answer))


def whole_body(answer: ChatAnswer) -> dict[str, Any]:
    """The complete ``chat.completion`` object of a finished answer."""
    generation = answer.generation
    echo_ids = answer.sampling.return_token_ids
    details = {
        "cached_tokens": generation.cached_tokens(),
        "created_cache_tokens": generation.created_cache_tokens(),
        "multimodal_tokens": None,
    }
    return {
        "id": generation.id,
        "object": "chat.completion",
        "created": generation.created,
        "model": answer.sampling.model,
        "choices": [_whole_choice(answer, choice) for choice in generation.choices],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**generation.usage(), "prompt_tokens_details": details, "completion_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": list(generation.choices[0].prompt) if echo_ids else None,
        "prompt_text": None,
        "kv_transfer_params": generation.hand_off_params(),
        "ec_transfer_params": None,
        "metrics": None,
    }


def _whole_choice(answer: ChatAnswer, choice: Choice) -> dict[str, Any]:
    every = range(choice.sent)
    call = answer.calls.get(choice.index)
    message: dict[str, Any] = {"role": "assistant", "content": choice.text(answer.tokenizer, every)}
    if call is not None and choice.sent == len(call.token_ids):
        message = {"role": "assistant", "content": None}
    message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    if message["content"] is None and call is not None:
        message["tool_calls"] = [call.message()]
    message["reasoning"] = None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": answer.logprobs_of(choice, every),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.ids(every) if answer.sampling.return_token_ids else None,
        "routed_experts": None,
    }


class ChatEvents:
    """Renders the events of one streamed answer.

    The plain text delta, by far the most frequent, is put together from bytes.
    """

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._generation = answer.generation
        self._sampling = answer.sampling
        head = {"id": self._generation.id, "object": "chat.completion.chunk", "created": self._generation.created}
        self._head = b"data: " + msgspec.json.encode({**head, "model": self._sampling.model})[:-1] + b',"choices":['
        self._plain = not self._sampling.return_token_ids and answer.logprobs is None
        self._fingerprint = b',"system_fingerprint":' + msgspec.json.encode(FINGERPRINT)
        self._before = [
            self._head + b'{"index":%d,"delta":{"content":' % choice.index for choice in self._generation.choices
        ]

    def opening(self, choice: Choice) -> bytes:
        ids = list(choice.prompt) if self._sampling.return_token_ids else None
        delta = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % choice.index
        )
        return self._head + delta + b',"prompt_token_ids":' + msgspec.json.encode(ids) + b',"prompt_text":null}\n\n'

    def growth(self, choice: Choice) -> list[bytes]:
        """The events for what came since the last call."""
        positions = choice.take()
        call = self._answer.calls.get(choice.index)
        if call is not None:
            deltas = call.deltas(positions) or ([{}] if choice.finish_reason else [])
            return [
                self._event(choice, msgspec.json.encode(delta), positions, last=i == len(deltas) - 1)
                for i, delta in enumerate(deltas)
            ]
        text = choice.json_text(self._answer.tokenizer, positions)
        if self._plain and choice.finish_reason is None and not self._sampling.continuous_usage:
            if text == b'""':
                return []
            return [
                self._before[choice.index] + text + b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            ]
        return [self._event(choice, b'{"content":' + text + b"}", positions, last=True)]

    def usage(self) -> bytes:
        generation = self._generation
        details = {
            "cached_tokens": generation.cached_tokens(),
            "created_cache_tokens": generation.created_cache_tokens(),
        }
        usage = msgspec.json.encode({**generation.usage(), "prompt_tokens_details": details})
        return self._head + b'],"usage":' + usage + self._fingerprint + b"}\n\n"

    def _event(self, choice: Choice, delta: bytes, positions: range, *, last: bool) -> bytes:
        reason = choice.finish_reason if last else None
        logprobs = self._answer.logprobs_of(choice, positions) if last else None
        ids = choice.ids(positions) if self._sampling.return_token_ids and last else None
        fields: dict[str, Any] = {"index": choice.index, "delta": msgspec.Raw(delta), "logprobs": logprobs}
        fields["finish_reason"] = reason
        if reason is not None:
            fields["stop_reason"] = choice.stop_reason
        fields["token_ids"] = ids
        event = self._head + msgspec.json.encode(fields) + b"]"
        if self._sampling.continuous_usage:
            event += b',"usage":' + msgspec.json.encode(self._generation.usage([choice]))
        if reason is not None and not self._sampling.include_usage:
            event += self._fingerprint
        return event + b"}\n\n"


async def _stream(ex: Exchange, answer: ChatAnswer) -> None:
    generation, events = answer.generation, ChatEvents(answer)
    await ex.start_sse()
    await generation.submit()
    left, opened = len(generation.choices), False
    try:
        while left:
            grown = await generation.grown()
            if not opened:
                # All choices are opened with the first token of any.
                opened = True
                for choice in generation.choices:
                    await ex.chunk(events.opening(choice))
            for choice in grown:
                for event in events.growth(choice):
                    await ex.chunk(event)
                left -= choice.finish_reason is not None
        if answer.sampling.include_usage:
            await ex.chunk(events.usage())
    except (EngineDied, TransferFailed):
        await ex.chunk(DEAD_EVENT)
    await ex.chunk(DONE_EVENT)
    await ex.end()
