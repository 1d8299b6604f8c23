"""Token-in routes: rendering without generating, and generating from token ids (``--enable-scale-out`` of vLLM)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.simulator.api.completions import read_prompts
from loadtest.simulator.api.exchange import DEAD_EVENT, DONE_EVENT, Exchange, dead_error
from loadtest.simulator.api.generate import Choice, Generation, check_prompt, plan_text, resolve_model
from loadtest.simulator.api.messages import chat_prompt
from loadtest.simulator.api.params import Sampling, check_types, parse_json, require_list, sampling
from loadtest.simulator.driver import EngineDied, TransferFailed
from loadtest.simulator.node import fresh_id


def _rendered(request_id: str, ids: Sequence[int], wanted: Sampling, body: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    params |= {"temperature": body.get("temperature", 1.0), "top_p": 1.0, "min_p": 0.0, "stop": list(wanted.stop)}
    params |= {"stop_token_ids": list(wanted.stop_token_ids), "max_tokens": wanted.max_tokens, "output_kind": 2}
    params |= {"skip_clone": True, "bad_words": [], "skip_reading_prefix_cache": False}
    return {
        "request_id": request_id,
        "token_ids": list(ids),
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": params,
        "model": wanted.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": False,
        "stream_options": None,
        "cache_salt": wanted.cache_salt,
        "priority": wanted.priority,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


async def render_chat(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    messages = require_list(body, "messages")
    model, _lora = resolve_model(ex.engine, body)
    wanted = sampling(body, model, ex.engine.max_model_len)
    ids = await chat_prompt(ex.engine, body, messages)
    check_prompt(ex.engine, ids)
    await ex.json(_rendered(f"chatcmpl-{ex.given_request_id or fresh_id()}", ids, wanted, body))


async def render_completions(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    model, _lora = resolve_model(ex.engine, body)
    wanted = sampling(body, model, ex.engine.max_model_len)
    prompts = await read_prompts(ex.engine, body.get("prompt"))
    for ids in prompts:
        check_prompt(ex.engine, ids)
    request_id = f"cmpl-{ex.given_request_id or fresh_id()}"
    await ex.json([_rendered(request_id, ids, wanted, body) for ids in prompts])


async def generate(ex: Exchange) -> None:
    """Token ids in, token ids out."""
    body = parse_json(ex.raw)
    ids = require_list(body, "token_ids")
    model, lora = resolve_model(ex.engine, body)
    params = body.get("sampling_params")
    check_types(params or {})
    shared = ("stream", "stream_options", "cache_salt", "priority", "kv_transfer_params")
    merged = {**(params if isinstance(params, dict) else {}), **{k: body[k] for k in shared if k in body}}
    wanted = sampling(merged, model, ex.engine.max_model_len, limits=("max_tokens",), default_max_tokens=16)
    check_prompt(ex.engine, ids)
    request_id = body.get("request_id") or ex.given_request_id or fresh_id()
    generation = Generation(ex, f"generate-tokens-{request_id}", wanted, lora)
    for index in range(wanted.n):
        generation.add(ids, plan_text(ex.engine, ids, wanted, index))
    generation.admit()
    async with generation:
        if wanted.stream:
            await _stream(ex, generation)
        else:
            await _whole(ex, generation)


def _choice(choice: Choice, positions: range) -> dict[str, Any]:
    over = choice.finish_reason is not None
    versions = [{"version": "default", "start": 0, "end": choice.sent}] if over else None
    return {
        "index": choice.index,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.ids(positions),
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
        "logprobs": None,
    }


async def _whole(ex: Exchange, generation: Generation) -> None:
    await generation.submit()
    try:
        await generation.finish()
    except (EngineDied, TransferFailed):
        raise dead_error() from None
    details = {"cached_tokens": generation.cached_tokens(), "created_cache_tokens": None, "multimodal_tokens": None}
    answer: dict[str, Any] = {"request_id": generation.id, "model": generation.sampling.model}
    answer |= {"created": generation.created}
    answer["usage"] = {**generation.usage(), "prompt_tokens_details": details, "completion_tokens_details": None}
    answer |= dict.fromkeys(
        ("prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics")
    )
    answer |= {"kv_transfer_params": generation.hand_off_params(), "ec_transfer_params": None, "output_mode": "tokens"}
    answer["choices"] = [_choice(choice, range(choice.sent)) for choice in generation.choices]
    await ex.json(answer)


async def _stream(ex: Exchange, generation: Generation) -> None:
    await ex.start_sse()
    await generation.submit()
    left = len(generation.choices)
    try:
        while left:
            for choice in await generation.grown():
                positions = choice.take()
                shown = _choice(choice, positions)
                left -= choice.finish_reason is not None
                event = {"request_id": generation.id, "usage": None, "output_mode": "tokens", "choices": [shown]}
                await ex.chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")
    except (EngineDied, TransferFailed):
        await ex.chunk(DEAD_EVENT)
    await ex.chunk(DONE_EVENT)
    await ex.end()
