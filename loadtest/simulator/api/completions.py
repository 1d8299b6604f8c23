"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.simulator.api.exchange import DEAD_EVENT, DONE_EVENT, Exchange, dead_error
from loadtest.simulator.api.generate import (
    Choice,
    Generation,
    check_prompt,
    plan_given,
    plan_text,
    resolve_model,
    wanted_json,
)
from loadtest.simulator.api.logprobs import completion_logprobs
from loadtest.simulator.api.params import invalid, number, parse_json, sampling
from loadtest.simulator.driver import EngineDied, TransferFailed
from loadtest.simulator.node import FINGERPRINT, SimEngine, fresh_id
from loadtest.simulator.sampler import make_rng

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions, which vLLM keeps."""


async def read_prompts(engine: SimEngine, value: Any) -> list[Sequence[int]]:
    """The prompts of a request: a string, strings, token ids, or lists of token ids. Raises ApiError."""
    empty = invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt", show_value=False)
    if value is None or value in ("", []):
        raise empty
    encode = engine.tokenizer.encode
    if isinstance(value, str):
        return [await encode(value, special=True)]
    if not isinstance(value, list):
        raise empty
    if all(isinstance(item, str) for item in value):
        return [await encode(item, special=True) for item in value]
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return [value]
    if all(isinstance(item, list) and all(isinstance(i, int) for i in item) for item in value):
        return list(value)
    raise invalid(
        "prompt must be a string, a list of strings, token ids or lists of token ids.", "prompt", show_value=False
    )


class CompletionAnswer:
    """A completion request with its sequences: prompts times n, in that order."""

    def __init__(self, generation: Generation, body: dict[str, Any]) -> None:
        self.generation = generation
        self.sampling = generation.sampling
        self.tokenizer = generation.engine.tokenizer
        self.echo = bool(body.get("echo"))
        self.logprobs = number(body, "logprobs")

    def prefix(self, choice: Choice) -> str:
        return self.tokenizer.decode(choice.prompt, skip_special=True) if self.echo else ""

    def logprobs_of(self, choice: Choice, positions: range, offset: int) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        return completion_logprobs(self.tokenizer, choice.ids(positions), self.logprobs, offset)


async def completions(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    engine = ex.engine
    model, lora = resolve_model(engine, body)
    wanted = sampling(body, model, engine.max_model_len, limits=("max_tokens",), default_max_tokens=DEFAULT_MAX_TOKENS)
    prompts = await read_prompts(engine, body.get("prompt"))
    request_id = ex.given_request_id or body.get("request_id") or fresh_id()
    generation = Generation(ex, f"cmpl-{request_id}", wanted, lora)
    for prompt in prompts:
        check_prompt(engine, prompt)
        for index in range(wanted.n):
            text = wanted_json(body, make_rng(engine.config.seed, prompt, f"{wanted.seed}:{index}:form"))
            if text is not None:
                plan = plan_given(engine, engine.tokenizer.encode_now(text, special=False), prompt, wanted)
            else:
                plan = plan_text(engine, prompt, wanted, index)
            generation.add(prompt, plan)
    generation.admit()
    answer = CompletionAnswer(generation, body)
    async with generation:
        if wanted.stream:
            await _stream(ex, answer)
        else:
            await _whole(ex, answer)


async def _whole(ex: Exchange, answer: CompletionAnswer) -> None:
    generation = answer.generation
    await generation.submit()
    try:
        await generation.finish()
    except (EngineDied, TransferFailed):
        raise dead_error() from None
    details = {"cached_tokens": generation.cached_tokens(), "created_cache_tokens": None, "multimodal_tokens": None}
    await ex.json(
        {
            "id": generation.id,
            "object": "text_completion",
            "created": generation.created,
            "model": answer.sampling.model,
            "choices": [_whole_choice(answer, choice) for choice in generation.choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**generation.usage(), "prompt_tokens_details": details, "completion_tokens_details": None},
            "kv_transfer_params": generation.hand_off_params(),
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def _whole_choice(answer: CompletionAnswer, choice: Choice) -> dict[str, Any]:
    every = range(choice.sent)
    prefix = answer.prefix(choice)
    ids = answer.sampling.return_token_ids
    return {
        "index": choice.index,
        "text": prefix + choice.text(answer.tokenizer, every),
        "logprobs": answer.logprobs_of(choice, every, len(prefix)),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.ids(every) if ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(choice.prompt) if ids else None,
        "routed_experts": None,
    }


class CompletionEvents:
    """Renders the events of one streamed answer; the plain text event is put together from bytes."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._generation = answer.generation
        self._sampling = answer.sampling
        head = {"id": self._generation.id, "object": "text_completion", "created": self._generation.created}
        self._head = b"data: " + msgspec.json.encode({**head, "model": self._sampling.model})[:-1] + b',"choices":['
        self._plain = answer.logprobs is None and not (
            self._sampling.return_token_ids or self._sampling.continuous_usage
        )
        self._fingerprint = b',"system_fingerprint":' + msgspec.json.encode(FINGERPRINT)
        self._before = [self._head + b'{"index":%d,"text":' % choice.index for choice in self._generation.choices]
        self._offsets = [0] * len(self._before)

    def growth(self, choice: Choice) -> bytes | None:
        positions = choice.take()
        text = choice.json_text(self._answer.tokenizer, positions)
        prefix = "" if choice.opened else self._answer.prefix(choice)
        opening, choice.opened = not choice.opened, True
        if prefix:
            text = msgspec.json.encode(prefix + choice.text(self._answer.tokenizer, positions))
        if self._plain and choice.finish_reason is None:
            if text == b'""':
                return None
            return (
                self._before[choice.index]
                + text
                + (
                    b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
                )
            )
        return self._event(choice, text, positions, opening=opening, prefix=prefix)

    def usage(self) -> bytes:
        details = {"prompt_tokens_details": {"cached_tokens": self._generation.cached_tokens()}}
        usage = msgspec.json.encode({**self._generation.usage(), **details})
        return self._head + b'],"usage":' + usage + self._fingerprint + b"}\n\n"

    def _event(self, choice: Choice, text: bytes, positions: range, *, opening: bool, prefix: str) -> bytes:
        ids = self._sampling.return_token_ids
        offset = self._offsets[choice.index] + len(prefix)
        self._offsets[choice.index] = offset + len(choice.text(self._answer.tokenizer, positions))
        fields = {
            "index": choice.index,
            "text": msgspec.Raw(text),
            "logprobs": self._answer.logprobs_of(choice, positions, offset),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "prompt_token_ids": list(choice.prompt) if ids and opening else None,
            "token_ids": choice.ids(positions) if ids else None,
        }
        event = self._head + msgspec.json.encode(fields) + b"]"
        if self._sampling.continuous_usage:
            event += b',"usage":' + msgspec.json.encode(self._generation.usage([choice]))
        if choice.finish_reason is not None and not self._sampling.include_usage:
            event += self._fingerprint
        return event + b"}\n\n"


async def _stream(ex: Exchange, answer: CompletionAnswer) -> None:
    generation, events = answer.generation, CompletionEvents(answer)
    await ex.start_sse()
    await generation.submit()
    left = len(generation.choices)
    try:
        while left:
            for choice in await generation.grown():
                event = events.growth(choice)
                if event is not None:
                    await ex.chunk(event)
                left -= choice.finish_reason is not None
        if answer.sampling.include_usage:
            await ex.chunk(events.usage())
    except (EngineDied, TransferFailed):
        await ex.chunk(DEAD_EVENT)
    await ex.chunk(DONE_EVENT)
    await ex.end()
