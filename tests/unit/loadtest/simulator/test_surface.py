"""What clients ask besides plain text: tools, JSON, stops, remembered responses, adapters, embeddings, audio."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from loadtest.simulator import EngineConfig
from tests.support.recordings import events
from tests.support.simulator import FAST, engines, http

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ASK: list[dict[str, Any]] = [{"role": "user", "content": "How will the weather be?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with engines(FAST) as (engine,), http(engine.url) as session:
        yield session


async def chat(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json={"messages": ASK, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), ("auto", "tool_calls"), (NAMED, "stop")])
async def test_a_tool_is_called_and_streams_the_same_call(client: httpx.AsyncClient, choice: Any, reason: str) -> None:
    body = {"tools": TOOLS, "tool_choice": choice}
    whole = await chat(client, **body)
    (call,) = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == reason
    assert whole["message"]["content"] is None
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert isinstance(arguments["city"], str)
    answer = await client.post("/v1/chat/completions", json={"messages": ASK, "stream": True, **body})
    choices = [event["choices"][0] for event in events(answer.text) if isinstance(event, dict)]
    parts = [part for c in choices for part in c["delta"].get("tool_calls", [])]
    assert parts[0]["function"]["name"] == call["function"]["name"]
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert choices[-1]["finish_reason"] == reason


async def test_a_tools_result_is_answered_in_words_and_finds_the_call_in_the_cache(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": "auto"}
    first = (await client.post("/v1/chat/completions", json={"messages": ASK, **body})).json()
    call = first["choices"][0]["message"]["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
    messages = [*ASK, first["choices"][0]["message"], result]
    second = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5, **body})).json()
    assert second["choices"][0]["message"]["content"]
    reusable = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == reusable // 16 * 16


async def test_tools_are_not_called_when_they_may_not(client: httpx.AsyncClient) -> None:
    assert "tool_calls" not in (await chat(client, tools=TOOLS, tool_choice="none", max_tokens=4))["message"]


async def test_json_is_answered_where_json_is_wanted(client: httpx.AsyncClient) -> None:
    json.loads((await chat(client, response_format={"type": "json_object"}))["message"]["content"])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert isinstance(json.loads((await chat(client, response_format=form))["message"]["content"])["n"], int)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_itself(client: httpx.AsyncClient, stream: bool) -> None:
    full = (await chat(client, max_tokens=60))["message"]["content"]
    words = full.split(" ")
    stop = f" {words[10]}"
    expected = full[: full.index(stop)]
    if not stream:
        cut = await chat(client, max_tokens=60, stop=[stop])
        assert (cut["message"]["content"], cut["finish_reason"], cut["stop_reason"]) == (expected, "stop", stop)
        kept = await chat(client, max_tokens=60, stop=stop, include_stop_str_in_output=True)
        assert kept["message"]["content"] == expected + stop
    else:
        answer = await client.post(
            "/v1/chat/completions", json={"messages": ASK, "max_tokens": 60, "stop": stop, "stream": True}
        )
        parts = [e["choices"][0]["delta"].get("content", "") for e in events(answer.text) if isinstance(e, dict)]
        assert "".join(parts) == expected


async def test_a_stop_token_ends_the_answer(client: httpx.AsyncClient) -> None:
    full = await chat(client, max_tokens=20, return_token_ids=True)
    token = full["token_ids"][5]
    cut = await chat(client, max_tokens=20, return_token_ids=True, stop_token_ids=[token])
    first = full["token_ids"].index(token)
    assert (cut["token_ids"], cut["stop_reason"]) == (full["token_ids"][: first + 1], token)


async def test_answers_depend_on_the_seed_not_on_the_engine() -> None:
    async with engines(FAST, FAST, EngineConfig(profile="instant", seed=1)) as running, http() as client:
        said = []
        for engine in running:
            body = {"prompt": "Hello", "max_tokens": 20, "n": 2}
            answer = (await client.post(f"{engine.url}/v1/completions", json=body)).json()
            said.append([choice["text"] for choice in answer["choices"]])
    assert said[0] == said[1] != said[2]
    assert said[0][0] != said[0][1]


async def test_echo_repeats_the_prompt_in_both_forms(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hello there", "max_tokens": 3, "echo": True}
    whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    streamed = await client.post("/v1/completions", json={**body, "stream": True})
    assert whole.startswith("Hello there")
    assert "".join(e["choices"][0]["text"] for e in events(streamed.text) if isinstance(e, dict)) == whole


async def test_token_ids_sent_along_with_a_chat_are_the_prompt(client: httpx.AsyncClient) -> None:
    body = {"messages": ASK, "max_tokens": 2, "kv_transfer_params": {"prompt_token_ids": list(range(500))}}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.json()["usage"]["prompt_tokens"] == 500


async def test_content_parts_are_read_as_text_and_images_refused(client: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "How will"}, {"type": "text", "text": "it be?"}]
    flat = {"messages": [{"role": "user", "content": "How will\nit be?"}]}
    counts = [
        (await client.post("/tokenize", json=body)).json()["tokens"]
        for body in (flat, {"messages": [{"role": "user", "content": parts}]})
    ]
    assert counts[0] == counts[1]
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": image}]})
    assert answer.status_code == 400
    assert "image" in answer.json()["error"]["message"]


async def test_the_tokenizer_is_the_packages_own(client: httpx.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json={"prompt": "Rivers flow to the sea."})).json()["tokens"]
    back = await client.post("/detokenize", json={"tokens": tokens})
    assert back.json() == {"prompt": "Rivers flow to the sea."}


async def test_a_response_is_remembered_and_continued(client: httpx.AsyncClient) -> None:
    first = (await client.post("/v1/responses", json={"input": "Hello " * 30, "max_output_tokens": 40})).json()
    again = await client.get(f"/v1/responses/{first['id']}")
    assert again.json() == first
    body = {"input": "More", "previous_response_id": first["id"], "max_output_tokens": 2}
    second = (await client.post("/v1/responses", json=body)).json()
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= 48
    assert (await client.get("/v1/responses/resp_unknown")).status_code == 404
    cancelled = await client.post(f"/v1/responses/{first['id']}/cancel")
    assert cancelled.status_code == 400


async def test_a_background_response_can_be_cancelled() -> None:
    async with (
        engines(EngineConfig(profile="8b", speed=0.2)) as (engine,),
        http(engine.url) as client,
    ):
        body = {"input": "Hello", "max_output_tokens": 500, "background": True}
        queued = (await client.post("/v1/responses", json=body)).json()
        assert queued["status"] == "queued"
        async with asyncio.timeout(20):
            while not engine.engine.ranks[0].core.num_running:
                await asyncio.sleep(0.01)
        cancelled = (await client.post(f"/v1/responses/{queued['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert engine.engine.ranks[0].core.cache.used_fraction == 0


async def test_adapters_come_and_go() -> None:
    async with engines(FAST) as (engine,), http(engine.url) as client:
        adapter = {"lora_name": "new", "lora_path": "/adapters/new"}
        assert (await client.post("/v1/load_lora_adapter", json=adapter)).status_code == 200
        again = await client.post("/v1/load_lora_adapter", json=adapter)
        assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
        body = {"prompt": "Hello", "model": "new"}
        assert (await client.post("/v1/completions", json=body)).json()["model"] == "new"
        assert (await client.post("/v1/unload_lora_adapter", json=adapter)).status_code == 200
        assert (await client.post("/v1/completions", json=body)).status_code == 404
        assert (await client.post("/v1/unload_lora_adapter", json=adapter)).status_code == 404


async def test_the_openai_client_gets_its_embeddings() -> None:
    async with engines(1) as (engine,), AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model="sim-model", input=["one", "two", "one"])
    first, second, third = (tuple(item.embedding) for item in answer.data)
    assert first == third != second
    assert abs(sum(v * v for v in first) - 1) < 1e-5


async def test_scores_and_classes_belong_to_what_was_sent(client: httpx.AsyncClient) -> None:
    body = {"query": "a", "documents": ["x", "y", "z"]}
    ranked = (await client.post("/v1/rerank", json=body)).json()["results"]
    scores = [result["relevance_score"] for result in ranked]
    assert scores == sorted(scores, reverse=True)
    scored = (await client.post("/v1/score", json={"text_1": "a", "text_2": ["x", "y", "z"]})).json()["data"]
    assert {r["index"]: r["relevance_score"] for r in ranked} == {d["index"]: d["score"] for d in scored}
    (classified,) = (await client.post("/classify", json={"input": "a"})).json()["data"]
    assert abs(sum(classified["probs"]) - 1) < 1e-9
    assert len((await client.post("/pooling", json={"input": "a"})).json()["data"][0]["data"]) == 64


async def test_audio_goes_in_and_out(client: httpx.AsyncClient) -> None:
    heard = await client.post("/v1/audio/transcriptions", files={"file": b"\0" * 64_000}, data={"model": "sim-model"})
    assert heard.json()["usage"] == {"type": "duration", "seconds": 2}
    spoken = await client.post("/v1/audio/speech", json={"input": "one two"})
    assert spoken.headers["content-type"] == "audio/wav"
    assert struct.unpack("<I", spoken.content[4:8])[0] == len(spoken.content) - 8


async def test_anthropic_tools_are_called_and_answered(client: httpx.AsyncClient) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}]
    body: dict[str, Any] = {"messages": ASK, "max_tokens": 100, "tools": tools, "system": "Be brief."}
    first = (await client.post("/v1/messages", json=body)).json()
    (block,) = first["content"]
    assert (block["type"], block["name"], first["stop_reason"]) == ("tool_use", "look", "tool_use")
    streamed = await client.post("/v1/messages", json={**body, "stream": True})
    deltas = [e["delta"] for e in events(streamed.text) if e["type"] == "content_block_delta"]
    assert json.loads("".join(d["partial_json"] for d in deltas)) == block["input"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "a river"}
    turns = [*ASK, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    second = (await client.post("/v1/messages", json={**body, "messages": turns})).json()
    assert second["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    "field",
    [
        {"stop": -1},
        {"stop_token_ids": 5},
        {"model": ["a"]},
        {"tools": 5},
        {"chat_template_kwargs": [1]},
        {"response_format": {"type": "json_schema", "json_schema": 5}},
        {"stream_options": "yes", "stream": True},
        {"max_tokens": 1.5},
        {"n": 0},
        {"cache_salt": ""},
    ],
)
async def test_a_field_of_the_wrong_type_is_refused_by_name(client: httpx.AsyncClient, field: dict[str, Any]) -> None:
    answer = await client.post("/v1/chat/completions", json={"messages": ASK, **field})
    assert answer.status_code == 400
    assert next(iter(field)) in answer.json()["error"]["message"]


async def test_an_empty_stop_string_stops_nothing(client: httpx.AsyncClient) -> None:
    assert (await chat(client, max_tokens=5, stop=""))["finish_reason"] == "length"


@pytest.mark.parametrize("digits", [25, 400, 5000])
async def test_a_seed_of_any_length_is_no_crash(client: httpx.AsyncClient, digits: int) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "seed": %b}' % (b"9" * digits)
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] in ("BadRequestError", "Bad Request")
