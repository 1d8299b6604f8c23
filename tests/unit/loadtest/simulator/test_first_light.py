"""A simulated engine answers an OpenAI client, finds prefixes again, and cleans up after itself."""

from __future__ import annotations

from openai import AsyncOpenAI

from tests.support.simulator import engines, http


async def test_an_openai_client_streams_a_chat() -> None:
    async with (
        engines(1) as (engine,),
        AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="sim-model",
            messages=[{"role": "user", "content": "Tell me about rivers."}],
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


async def test_the_second_turn_of_a_conversation_finds_the_first_in_the_cache() -> None:
    async with engines(1) as (engine,), http(engine.url) as client:
        messages = [{"role": "user", "content": "Tell me about rivers and mountains. " * 10}]
        first = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 64})).json()
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And about the sea?"}]
        second = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reusable = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == reusable // 16 * 16
