"""The simulated engine answers as vLLM 0.32 did: same status, same headers, same fields in the same order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from loadtest.simulator import EngineConfig
from tests.support.recordings import events, in_order, recording, shape
from tests.support.simulator import FAST, engines, http

MESSAGES = [
    {"role": "system", "content": "You are a router that is tested, and nothing else matters to you."},
    {"role": "user", "content": "Say something short about the weather of today."},
]
CHAT = {"model": "sim-model", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
COMPLETION = {"model": "sim-model", "prompt": "Hello, world!", "max_tokens": 6, "temperature": 0}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    config = EngineConfig(
        profile="instant", block_size=32, max_model_len=2048, aliases=("sim-alias",), loras=("lora-a", "lora-b")
    )
    async with engines(config) as (engine,), http(engine.url) as session:
        yield session


async def post(client: httpx.AsyncClient, path: str, body: Any, **headers: str) -> httpx.Response:
    return await client.post(path, json=body, headers=headers)


WHOLE: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", "/v1/chat/completions", CHAT),
    ("completion", "/v1/completions", COMPLETION),
    ("completion_batch_prompts", "/v1/completions", {**COMPLETION, "prompt": ["Hello", "World"]}),
    (
        "completion_n2_logprobs_token_ids",
        "/v1/completions",
        {**COMPLETION, "n": 2, "logprobs": 1, "return_token_ids": True},
    ),
    ("messages", "/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    ("messages_count_tokens", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("responses", "/v1/responses", {"input": "Say something.", "max_output_tokens": 4, "temperature": 0}),
    ("completions_render", "/v1/completions/render", COMPLETION),
    (
        "generate",
        "/inference/v1/generate",
        {"token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 4}, "model": "sim-model"},
    ),
    ("tokenize_prompt", "/tokenize", {"prompt": "Hello, world! How are you?", "return_token_strs": True}),
    ("tokenize_chat", "/tokenize", {"messages": MESSAGES}),
    ("detokenize", "/detokenize", {"tokens": [39, 373]}),
]


def without_token_texts(value: Any) -> Any:
    """The maps from token texts have names of their own; their values are compared alone."""
    if isinstance(value, dict):
        return {
            name: ["map"] if name == "top_logprobs" and value.get("text_offset") is not None else without_token_texts(v)
            for name, v in value.items()
        }
    return [without_token_texts(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "path", "body"), WHOLE, ids=[name for name, _, _ in WHOLE])
async def test_whole_answers(client: httpx.AsyncClient, name: str, path: str, body: dict[str, Any]) -> None:
    answer, known = await post(client, path, body), recording(name)
    assert answer.status_code == known.status
    assert list(answer.headers) == list(known.headers)
    assert in_order(without_token_texts(answer.json())) == in_order(without_token_texts(known.json()))


STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("chat_stream", "/v1/chat/completions", CHAT),
    ("chat_stream_usage", "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}),
    ("chat_stream_n2", "/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 3}),
    (
        "chat_stream_token_ids_logprobs",
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 3, "return_token_ids": True, "logprobs": True, "top_logprobs": 2},
    ),
    ("completion_stream", "/v1/completions", COMPLETION),
    ("completion_stream_usage", "/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}}),
    (
        "completion_stream_usage_continuous",
        "/v1/completions",
        {**COMPLETION, "max_tokens": 4, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    ("completion_stream_token_ids", "/v1/completions", {**COMPLETION, "max_tokens": 4, "return_token_ids": True}),
    (
        "generate_stream",
        "/inference/v1/generate",
        {"token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 4}, "model": "sim-model"},
    ),
    ("messages_stream", "/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    ("responses_stream", "/v1/responses", {"input": "Say something.", "max_output_tokens": 2, "temperature": 0}),
]


@pytest.mark.parametrize(("name", "path", "body"), STREAMS, ids=[name for name, _, _ in STREAMS])
async def test_streamed_answers(client: httpx.AsyncClient, name: str, path: str, body: dict[str, Any]) -> None:
    answer, known = await post(client, path, {**body, "stream": True}), recording(name)
    assert answer.status_code == known.status
    assert list(answer.headers) == list(known.headers)
    assert answer.headers["content-type"] == known.headers["content-type"]
    # The first answer of a fresh engine and a recorded one differ in what was cached, not in what is said of it.
    assert [in_order(e) for e in events(answer.text)] == [in_order(e) for e in known.events()]
    lines = [line.partition(":")[0] for line in answer.text.splitlines()]
    assert lines == [line.partition(":")[0] for line in known.body.rstrip("\n").splitlines()] + [""]


ERRORS: list[tuple[str, str, Any]] = [
    ("err_400_max_tokens_too_large", "/v1/completions", {**COMPLETION, "max_tokens": 5000}),
    ("err_400_context_too_long", "/v1/completions", {**COMPLETION, "prompt": [1] * 3000}),
    ("err_422_missing_messages", "/v1/chat/completions", {"model": "sim-model"}),
    ("err_empty_prompt", "/v1/completions", {**COMPLETION, "prompt": ""}),
    ("err_negative_max_tokens", "/v1/completions", {**COMPLETION, "max_tokens": -1}),
    ("err_stream_options_without_stream", "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}),
    ("err_temperature", "/v1/chat/completions", {**CHAT, "temperature": -3}),
    ("err_token_out_of_vocab", "/v1/completions", {**COMPLETION, "prompt": [1, 999999]}),
    ("err_type_messages", "/v1/chat/completions", {"model": "sim-model", "messages": "hi"}),
    ("err_404_route", "/v1/nothing", {}),
]


@pytest.mark.parametrize(("name", "path", "body"), ERRORS, ids=[name for name, _, _ in ERRORS])
async def test_refusals_are_word_for_word_the_same(
    client: httpx.AsyncClient, name: str, path: str, body: dict[str, Any]
) -> None:
    answer, known = await post(client, path, body), recording(name)
    assert (answer.status_code, answer.json()) == (known.status, known.json())
    assert list(answer.headers) == list(known.headers)


async def test_a_broken_body_is_refused_with_the_place_of_the_fault(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", content=b'{"model": "tiny", "messages": }')
    assert (answer.status_code, answer.json()) == (400, recording("err_bad_json").json())


async def test_an_unknown_model_is_refused_with_the_known_ones(client: httpx.AsyncClient) -> None:
    answer, known = await post(client, "/v1/completions", {**COMPLETION, "model": "nope"}), recording("err_404_model")
    assert answer.status_code == known.status
    assert answer.json()["error"]["message"] == known.json()["error"]["message"].replace("tiny", "sim").replace(
        "sim,", "sim-model,"
    )


async def test_a_wrong_method_and_a_wrong_rank_are_refused_as_recorded(client: httpx.AsyncClient) -> None:
    answer, known = await client.get("/v1/chat/completions"), recording("err_405_method")
    assert (answer.status_code, answer.json(), answer.headers["allow"]) == (405, known.json(), known.headers["allow"])
    answer = await client.post("/v1/chat/completions", json=CHAT, headers={"X-data-parallel-rank": "7"})
    assert (answer.status_code, answer.json()) == (400, recording("chat_dp_rank_header_bad").json())


@pytest.mark.parametrize(
    ("name", "path"),
    [("models", "/v1/models"), ("version", "/version"), ("load", "/load"), ("kv_event_sources", "/kv_event_sources")],
)
async def test_what_is_asked_before_any_request(client: httpx.AsyncClient, name: str, path: str) -> None:
    answer, known = await client.get(path), recording(name)
    assert list(answer.headers) == list(known.headers)
    assert in_order(answer.json()) == in_order(known.json())


async def test_models_list_aliases_and_adapters_as_recorded(client: httpx.AsyncClient) -> None:
    cards, known = (await client.get("/v1/models")).json()["data"], recording("models").json()["data"]
    assert [shape(card) for card in cards] == [shape(card) for card in known]
    assert [card["id"] for card in cards] == ["sim-model", "sim-alias", "lora-a", "lora-b"]
    assert [card["parent"] for card in cards] == [None, None, "sim-model", "sim-model"]


async def test_a_request_id_becomes_the_answers_id_and_is_returned(client: httpx.AsyncClient) -> None:
    for path, body, prefix in (("/v1/chat/completions", CHAT, "chatcmpl"), ("/v1/completions", COMPLETION, "cmpl")):
        answer = await client.post(path, json=body, headers={"X-Request-Id": "mine-7"})
        assert answer.json()["id"] == f"{prefix}-mine-7"
        assert answer.headers["x-request-id"] == "mine-7"


async def test_unknown_fields_and_a_missing_model_are_accepted(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"prompt": "a", "unheard_of": {"x": 1}})
    assert answer.json()["model"] == "sim-model"


async def test_the_api_key_guards_v1_alone() -> None:
    async with engines(FAST, api_key="secret") as (engine,), http(engine.url) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": "Bearer secret"})).status_code == 200
