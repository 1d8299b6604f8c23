"""langchain-openai against the address given: plain, streamed, asynchronous, tools, structured output."""

from __future__ import annotations

import asyncio
import sys

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Weather(BaseModel):
    place: str = Field(max_length=8)


def weather(place: str) -> str:
    """The weather at a place."""
    return place


async def main(url: str) -> None:
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny", temperature=0, max_tokens=60, timeout=120)
    said = model.invoke("Name a river.")
    assert said.usage_metadata["input_tokens"] > 0
    gathered = AIMessageChunk(content="")
    for piece in model.stream("Name a river.", stream_usage=True):
        gathered += piece
    assert gathered.content == said.content
    assert gathered.usage_metadata == said.usage_metadata or gathered.usage_metadata["output_tokens"] > 0
    assert (await model.ainvoke("Name a river.")).content == said.content
    assert len([piece async for piece in model.astream("Name a river.")]) > 1
    assert len(await model.abatch(["one", "two", "three"])) == 3
    called = model.bind_tools([tool(weather)], tool_choice="weather").invoke("Weather?")
    assert called.tool_calls or called.invalid_tool_calls
    raw = model.with_structured_output(Weather, method="json_schema", include_raw=True).invoke("Weather?")
    assert raw["raw"].content.lstrip().startswith("{")


asyncio.run(main(sys.argv[1]))
