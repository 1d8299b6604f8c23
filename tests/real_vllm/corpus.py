"""Requests of every kind that an engine serves or refuses. PURE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.real_vllm.workload import CHAT, COMPLETIONS, TOOL, numbers

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


class Case(NamedTuple):
    name: str
    path: str
    content: bytes
    method: str = "POST"
    content_type: str = "application/json"
    answered_by_router: bool = False
    """It never reaches an engine: no JSON object, a model, path or method that there is not."""

    @property
    def refused(self) -> bool:
        return self.answered_by_router or self.name.startswith(("refused", "not served"))


def corpus() -> list[Case]:
    made = [*_valid(), *_invalid(), *_raw()]
    names = [case.name for case in made]
    assert len(set(names)) == len(names)
    return made


SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river, and its length."}]
BASE: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 0, "seed": 3}
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SAMPLED = {"temperature": 0.9, "top_p": 0.8, "top_k": 20, "min_p": 0.01}
SCHEMA: dict[str, Any] = TOOL["function"]["parameters"]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "a"}'}}
CALLED = [
    *SAID,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]

# What chats and completions both take.
_COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "streamed": STREAM,
    "streamed with usage": USAGE,
    "continuous usage": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "sampled": SAMPLED,
    "two choices": {"n": 2, **SAMPLED},
    "two choices, streamed": {"n": 2, **SAMPLED, **STREAM},
    "one token": {"max_tokens": 1},
    "one token, streamed": {"max_tokens": 1, **USAGE},
    "stop": {"stop": ["e", " a"], "max_tokens": 30},
    "stop, streamed": {"stop": ["e", " a"], "max_tokens": 30, **STREAM},
    "stop kept": {"stop": "e", "include_stop_str_in_output": True, "max_tokens": 30},
    "stop token": {"stop_token_ids": numbers(5, 100), "max_tokens": 30},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"50": 100}},
    "min_tokens": {"min_tokens": 4},
    "ignore_eos": {"ignore_eos": True},
    "salted": {"cache_salt": "pepper"},
    "adapter": {"model": "lora-a"},
    "adapter, streamed": {"model": "lora-b", **STREAM},
    "no model": {"model": None},
    "user": {"user": "somebody"},
    "unknown member": {"no_such_member": {"a": 1}},
    "request id": {"request_id": "mine"},
    "token ids": {"return_token_ids": True},
    "token ids, streamed": {"return_token_ids": True, **STREAM},
    "special tokens kept": {"skip_special_tokens": False},
    "truncated": {"truncate_prompt_tokens": 8},
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "pattern": {"structured_outputs": {"regex": "[0-9]{3}"}},
    "schema": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
}

_REFUSED: dict[str, dict[str, Any]] = {
    "negative temperature": {"temperature": -1},
    "top_p beyond one": {"top_p": 1.5},
    "top_k below": {"top_k": -5},
    "no tokens": {"max_tokens": 0},
    "negative tokens": {"max_tokens": -4},
    "too many tokens": {"max_tokens": 100_000},
    "no choices": {"n": 0},
    "greedy choices": {"n": 3},
    "logprobs beyond": {"logprobs": True, "top_logprobs": 1000},
    "options without stream": {"stream_options": {"include_usage": True}},
    "stream of the wrong type": {"stream": "maybe"},
    "temperature of the wrong type": {"temperature": "warm"},
    "bias out of vocabulary": {"logit_bias": {"999999": 1}},
    "penalty beyond": {"presence_penalty": 9},
    "empty salt": {"cache_salt": ""},
    "salt of the wrong type": {"cache_salt": 5},
    "pattern that is none": {"structured_outputs": {"regex": "("}},
    "two structures": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "min above max": {"min_tokens": 50, "max_tokens": 4},
    "truncation below": {"truncate_prompt_tokens": -7},
    "truncation beyond": {"truncate_prompt_tokens": 100_000},
    "many stops of the wrong type": {"stop": [1, 2]},
    "refused, streamed": {"temperature": -1, "stream": True},
}

_CHATS: dict[str, dict[str, Any]] = {
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
    "one user": {"messages": SAID[1:]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, SAID[1]]},
    "after a tool": {"messages": CALLED, "tools": [TOOL]},
    "tools": {"tools": [TOOL], "tool_choice": "none"},
    "tools, auto": {"tools": [TOOL], "tool_choice": "auto"},
    "tools, auto, streamed": {"tools": [TOOL], **STREAM},
    "tool required": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 80},
    "tool required, streamed": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 80, **STREAM},
    "tool named": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 60,
    },
    "json object": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "json schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}},
        "max_tokens": 60,
    },
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "logprobs, streamed": {"logprobs": True, "top_logprobs": 2, **STREAM},
    "goes on": {
        "messages": [*SAID, {"role": "assistant", "content": "The"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "echo": {"echo": True},
    "other limit": {"max_tokens": None, "max_completion_tokens": 3},
    "no limit": {"max_tokens": None, "stop": ["e"]},
    "template argument": {"chat_template_kwargs": {"enable_thinking": False}},
    "named author": {"messages": [{"role": "user", "name": "ann", "content": "hi"}]},
    "beyond ASCII": {"messages": [{"role": "user", "content": "Größe → 日本 \U0001f600"}]},
    "empty text": {"messages": [{"role": "user", "content": ""}]},
}
_CHATS_REFUSED: dict[str, dict[str, Any]] = {
    "no messages": {"messages": []},
    "messages of the wrong type": {"messages": "hi"},
    "message without role": {"messages": [{"content": "hi"}]},
    "content of the wrong type": {"messages": [{"role": "user", "content": 5}]},
    "unknown part": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]},
    "an image": {"messages": [{"role": "user", "content": IMAGE}]},
    "too long": {"messages": [{"role": "user", "content": "word " * 9000}]},
    "tool without name": {"tools": [{"type": "function", "function": {}}]},
    "tool choice without tools": {"tool_choice": "required"},
    "unknown tool chosen": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
    "format of the wrong type": {"response_format": {"type": "yaml"}},
    "top_logprobs alone": {"top_logprobs": 3},
}
_COMPLETED: dict[str, dict[str, Any]] = {
    "ids": {"prompt": numbers(1, 40)},
    "batch": {"prompt": ["one river", "two rivers"]},
    "batch, streamed": {"prompt": ["one river", "two rivers"], **STREAM},
    "batch of ids": {"prompt": [numbers(1, 40), numbers(2, 5)]},
    "logprobs": {"logprobs": 2},
    "logprobs, streamed": {"logprobs": 2, **STREAM},
    "prompt logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True},
    "echo alone": {"echo": True, "max_tokens": 0},
    "special tokens left out": {"add_special_tokens": False},
    "no limit given": {"max_tokens": None},
}
_COMPLETED_REFUSED: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt": None},
    "empty prompt": {"prompt": ""},
    "empty list": {"prompt": []},
    "ids out of vocabulary": {"prompt": [1, 2, 999_999]},
    "ids of mixed types": {"prompt": [1, "two"]},
    "negative ids": {"prompt": [-1]},
    "too long": {"prompt": numbers(1, 5000)},
    "a suffix": {"suffix": "after"},
    "echo, streamed with nothing": {"echo": True, "max_tokens": 0, "stream": True},
    "prompt logprobs, streamed": {"prompt_logprobs": 1, "stream": True},
}


def _valid() -> Iterator[Case]:
    for name, more in {**_COMMON, **_CHATS}.items():
        yield _json(f"chat: {name}", CHAT, {**BASE, "messages": SAID, **more})
    for name, more in {**_COMMON, **_COMPLETED}.items():
        yield _json(f"completion: {name}", COMPLETIONS, {**BASE, "prompt": "A river is", **more})
    yield _json("tokenize", "/tokenize", {"model": "tiny", "prompt": "a river"})
    yield _json("tokenize a chat", "/tokenize", {"model": "tiny", "messages": SAID, "return_token_strs": True})
    yield _json("detokenize", "/detokenize", {"model": "tiny", "tokens": [100, 200, 300]})
    yield _json("count", f"{MESSAGES}/count_tokens", {"model": "tiny", "messages": SAID[1:]})
    yield _json("message", MESSAGES, {"model": "tiny", "max_tokens": 6, "temperature": 0, "messages": SAID[1:]})
    yield _json(
        "message, streamed",
        MESSAGES,
        {"model": "tiny", "max_tokens": 6, "temperature": 0, "messages": SAID[1:], "stream": True},
    )
    response = {"model": "tiny", "input": "a river", "max_output_tokens": 6, "temperature": 0, "store": False}
    yield _json("response", RESPONSES, response)
    yield _json("response, streamed", RESPONSES, {**response, "stream": True})


def _invalid() -> Iterator[Case]:
    for name, more in {**_REFUSED, **_CHATS_REFUSED}.items():
        yield _json(f"refused chat: {name}", CHAT, {**BASE, "messages": SAID, **more})
    for name, more in {**_REFUSED, **_COMPLETED_REFUSED}.items():
        yield _json(f"refused completion: {name}", COMPLETIONS, {**BASE, "prompt": "A river is", **more})
    yield _json("no members", CHAT, {})
    yield _json("response without input", RESPONSES, {"model": "tiny"})
    yield _json("message without limit", MESSAGES, {"model": "tiny", "messages": SAID[1:]})
    yield _json("tokenize nothing", "/tokenize", {"model": "tiny"})
    yield _json("detokenize text", "/detokenize", {"model": "tiny", "tokens": "abc"})
    for path in ("/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling", "/classify"):
        yield _json(f"not served: {path}", path, {"model": "tiny", "input": "a", "query": "q", "documents": ["d"]})


def _raw() -> Iterator[Case]:
    """Bodies that are no JSON object, and methods and types that are wrong."""
    for path in (CHAT, COMPLETIONS):
        for name, content in {
            "nothing": b"",
            "half an object": b'{"model": "tiny", "messages": [',
            "a list": b"[]",
            "a number": b"5",
            "text": b"hello",
            "no UTF-8": b'{"model": "\xff\xfe"}',
        }.items():
            yield Case(f"{name} to {path}", path, content, answered_by_router=True)
        yield Case(f"GET {path}", path, b"", "GET", answered_by_router=True)
        unknown = json.dumps({**BASE, "model": "lora-z", "messages": SAID, "prompt": "a river"}).encode()
        yield Case(f"unknown model to {path}", path, unknown, answered_by_router=True)
        body = json.dumps({**BASE, "messages": SAID, "prompt": "a river"}).encode()
        yield Case(f"another content type to {path}", path, body, content_type="text/plain")
    yield Case("unknown path", "/v1/no/such/path", b"{}", answered_by_router=True)


def _json(name: str, path: str, body: dict[str, Any]) -> Case:
    return Case(name, path, json.dumps(body).encode())
