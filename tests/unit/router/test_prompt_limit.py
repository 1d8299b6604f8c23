"""Prompts that are too long: by the setting, and by what every serving engine can take."""

from __future__ import annotations

from typing import Any

import pytest

from router.core import Api, Endpoint, EndpointState, InferenceRequest, ModelCard, TokenizedPrompt, TokenSource
from router.errors import ContextTooLong
from router.prompt_limit import NO_LIMIT, PromptLimit


def request(api: Api = Api.CHAT, **fields: Any) -> InferenceRequest:
    return InferenceRequest(request_id="r", api=api, path="/", model="m", fields=fields)


def prompt(tokens: int, source: TokenSource = TokenSource.LOCAL) -> TokenizedPrompt:
    return TokenizedPrompt(token_ids=(), source=source, token_count=tokens)


def engine(*lengths: int | None) -> list[EndpointState]:
    return [
        EndpointState(
            endpoint=Endpoint(id=str(i), url=f"http://{i}"), models={"m": ModelCard(id="m", max_model_len=length)}
        )
        for i, length in enumerate(lengths)
    ]


def refused(limit: PromptLimit, *given: Any) -> ContextTooLong | None:
    try:
        limit.check(*given)
    except ContextTooLong as error:
        return error
    return None


def test_without_a_limit_everything_goes_on() -> None:
    assert refused(NO_LIMIT, request(), prompt(10**9), engine(10)) is None


@pytest.mark.parametrize(
    ("api", "param"), [(Api.CHAT, "messages"), (Api.COMPLETIONS, "prompt"), (Api.RESPONSES, "input")]
)
def test_one_token_too_many_is_refused_as_openai_does(api: Api, param: str) -> None:
    limit = PromptLimit(tokens=100)
    assert refused(limit, request(api), prompt(100, TokenSource.ESTIMATE), []) is None
    error = refused(limit, request(api), prompt(101, TokenSource.ESTIMATE), [])
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert "101 tokens and may have 100 by limits.max_prompt_tokens" in error.message


def test_the_longest_engine_counts_and_an_answer_needs_room() -> None:
    limit = PromptLimit(by_model=True)
    assert refused(limit, request(), prompt(99), engine(50, 100)) is None
    assert refused(limit, request(), prompt(100), engine(50, 100)) is not None


@pytest.mark.parametrize(
    "given",
    [
        (request(), prompt(500, TokenSource.ESTIMATE), engine(100)),
        (request(), prompt(500), engine(100, None)),
        (request(), prompt(500), []),
        (request(Api.COMPLETIONS, prompt=["a", "b"]), prompt(500), engine(100)),
        (request(Api.COMPLETIONS, prompt=[[1], [2]]), prompt(500), engine(100)),
        (request(truncate_prompt_tokens=10), prompt(500), engine(100)),
        (request(Api.RESPONSES, truncation="auto"), prompt(500), engine(100)),
    ],
    ids=["estimated", "an engine does not tell", "nobody known", "texts", "ids", "cut", "cut by the response API"],
)
def test_where_the_engine_may_take_it_the_engine_is_asked(given: tuple[Any, ...]) -> None:
    assert refused(PromptLimit(by_model=True), *given) is None
