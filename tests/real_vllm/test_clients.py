"""Programs that people use work through the router: OpenAI's client, LangChain's, LiteLLM's, vLLM's own benchmark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real_vllm.build import CACHE, CLIENTS_PYTHON, ENGINE_PYTHON, FULL, MODEL
from tests.real_vllm.engines import Engine
from tests.real_vllm.routers import exact, router_over
from tests.real_vllm.workload import TOOL
from tests.support.router import RunningRouter

REQUIRED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
SAID: list[Any] = [{"role": "user", "content": "Name a river."}]


@pytest.fixture
async def router(aggregated: list[Engine]) -> AsyncIterator[RunningRouter]:
    async with router_over(aggregated) as router:
        await exact(router)
        yield router


async def test_openai(router: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", timeout=120) as client:
        assert "tiny" in [model.id async for model in client.models.list()]
        common: dict[str, Any] = {"model": "tiny", "messages": SAID, "temperature": 0}
        said = await client.chat.completions.create(**common, max_tokens=20)
        text = said.choices[0].message.content
        stream = await client.chat.completions.create(
            **common, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        pieces = [piece async for piece in stream]
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == text
        assert pieces[-1].usage.completion_tokens == said.usage.completion_tokens
        called = await client.chat.completions.create(**common, **REQUIRED, max_tokens=90)
        assert called.choices[0].finish_reason in ("tool_calls", "length")
        schema: Any = {"name": "w", "schema": TOOL["function"]["parameters"]}
        shaped = await client.chat.completions.create(
            **common, max_tokens=90, response_format={"type": "json_schema", "json_schema": schema}
        )
        assert shaped.choices[0].finish_reason == "length" or "place" in json.loads(shaped.choices[0].message.content)
        plain = await client.completions.create(model="lora-a", prompt=["a", "b"], max_tokens=3)
        assert len(plain.choices) == 2
        response = await client.responses.create(model="tiny", input="A river?", max_output_tokens=8)
        assert response.usage is not None
        assert response.usage.output_tokens == 8
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=SAID)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**{**common, "temperature": -1})


async def test_openai_without_asyncio(router: RunningRouter) -> None:
    def talk() -> None:
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", timeout=120) as client:
            said = client.chat.completions.create(model="tiny", messages=SAID, max_tokens=20, temperature=0)
            with client.chat.completions.stream(model="tiny", messages=SAID, max_tokens=20, temperature=0) as stream:
                pieces = [event.delta for event in stream if event.type == "content.delta"]
            assert "".join(pieces) == said.choices[0].message.content

    await asyncio.to_thread(talk)


@pytest.mark.parametrize("script", ["with_langchain.py", "with_litellm.py"])
async def test_other_clients(router: RunningRouter, script: str) -> None:
    program = Path(__file__).parent / "clients" / script
    code, said = await run(CLIENTS_PYTHON, program, router.url)
    assert code == 0, said


DATA_SETS = {
    "random": ["--random-input-len", "200", "--random-output-len", "20"],
    "prefix_repetition": [
        *("--prefix-repetition-prefix-len", "150", "--prefix-repetition-suffix-len", "60"),
        *("--prefix-repetition-num-prefixes", "5", "--prefix-repetition-output-len", "20"),
    ],
}


@pytest.mark.parametrize("data_set", DATA_SETS)
async def test_vllms_own_benchmark(router: RunningRouter, data_set: str, note: Callable[[str], None]) -> None:
    count = 100 if FULL else 40
    code, said = await run(
        ENGINE_PYTHON.with_name("vllm"),
        *("bench", "serve", "--backend", "openai", "--base-url", router.url, "--model", "tiny"),
        *("--tokenizer", MODEL, "--dataset-name", data_set, "--num-prompts", count, "--max-concurrency", 8),
        *("--save-result", "--result-dir", CACHE, "--result-filename", "bench.json", "--disable-tqdm"),
        *DATA_SETS[data_set],
    )
    assert code == 0, said
    result = json.loads((CACHE / "bench.json").read_text())
    ttft = result["mean_ttft_ms"]
    note(f"vllm bench serve, {data_set}: {result['completed']} of {count} done, mean TTFT {ttft:.0f} ms")
    assert result["completed"] == count
    assert result.get("failed", 0) == 0


async def run(*command: object) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode(errors="replace")[-4000:]
