from __future__ import annotations

import json
from typing import Any

import pytest

from router.core import Api, InferenceRequest
from router.wire.continuable import terms_of
from router.wire.openai import parse_request

CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "m", "stream": True, "prompt": "x"}


def asked(body: dict[str, Any], api: Api = Api.CHAT) -> tuple[InferenceRequest, bytes]:
    raw = json.dumps(body).encode()
    parsed = parse_request(api, "/x", raw)
    request = InferenceRequest(
        request_id="r", api=api, path="/x", body=raw, stream=parsed.stream, n=parsed.n, fields=parsed.fields
    )
    return request, raw


def continuable(api: Api = Api.CHAT, /, **more: Any) -> bool:
    base = CHAT if api is Api.CHAT else COMPLETION
    return terms_of(*asked({**base, **more}, api)) is not None


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1, "logit_bias": {"5": 1}},
        {"seed": 1, "temperature": 0},
        {"seed": None, "stop": None, "tools": None, "logprobs": None, "n": None},
        {"n": 1, "stop": [], "tools": [], "tool_choice": "none", "logprobs": False, "presence_penalty": 0},
        {"response_format": {"type": "text"}},
        {"stop_token_ids": [5], "ignore_eos": True, "max_completion_tokens": 9},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant"}]},
    ],
)
def test_what_each_token_alone_decides_can_be_gone_on_with(more: dict[str, Any]) -> None:
    assert continuable(Api.CHAT, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"stream": False},
        {"n": 2},
        {"seed": 1},
        {"seed": 1, "temperature": 0.1},
        {"stop": "."},
        {"stop": ["."]},
        {"logprobs": True},
        {"presence_penalty": 1},
        {"frequency_penalty": -0.1},
        {"bad_words": ["x"]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "x"}},
        {"guided_json": {}},
        {"vllm_xargs": {}},
        {"unknown": 0},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": "x"},
        {"max_tokens": "many"},
        {"stream_options": {"include_usage": "perhaps"}},
    ],
)
def test_what_looks_back_at_the_answer_or_is_not_known_cannot(more: dict[str, Any]) -> None:
    assert not continuable(Api.CHAT, **more)


@pytest.mark.parametrize("logprobs", [0, 1])
def test_a_completion_that_asks_for_logprobs_cannot(logprobs: int) -> None:
    assert not continuable(Api.COMPLETIONS, logprobs=logprobs)


@pytest.mark.parametrize(
    ("prompt", "can"), [("x", True), ([1, 2], True), (["x"], False), ([[1], [2]], False), ([], False)]
)
def test_one_prompt_can_and_a_batch_cannot(prompt: Any, can: bool) -> None:
    assert continuable(Api.COMPLETIONS, prompt=prompt) is can


def test_other_apis_cannot() -> None:
    assert not terms_of(*asked({"model": "m", "input": "x", "stream": True}, Api.RESPONSES))


def test_the_limit_is_the_newer_name_and_a_completions_default_is_the_engines() -> None:
    def limit(api: Api, **more: Any) -> int | None:
        terms = terms_of(*asked({**(CHAT if api is Api.CHAT else COMPLETION), **more}, api))
        assert terms is not None
        return terms.max_tokens

    assert limit(Api.CHAT, max_tokens=5, max_completion_tokens=7) == 7
    assert limit(Api.CHAT) is None
    assert limit(Api.COMPLETIONS) == 16
