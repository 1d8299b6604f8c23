"""The litellm SDK against the address given: chats and completions, streamed and not, tools, several at once."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import litellm

SAID = [{"role": "user", "content": "Name a river."}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}


async def main(url: str) -> None:
    common: dict[str, Any] = {"model": "hosted_vllm/tiny", "api_base": f"{url}/v1", "max_tokens": 20, "temperature": 0}
    said = litellm.completion(messages=SAID, **common)
    text = said.choices[0].message.content
    streamed = list(litellm.completion(messages=SAID, stream=True, stream_options={"include_usage": True}, **common))
    assert "".join(piece.choices[0].delta.content or "" for piece in streamed if piece.choices) == text
    assert (await litellm.acompletion(messages=SAID, **common)).choices[0].message.content == text
    stream = await litellm.acompletion(messages=SAID, stream=True, **common)
    assert len([piece async for piece in stream]) > 1
    called = litellm.completion(messages=SAID, tools=[TOOL], tool_choice="required", **{**common, "max_tokens": 80})
    assert called.choices[0].finish_reason in ("tool_calls", "length", "stop")
    many = await asyncio.gather(*(litellm.acompletion(messages=SAID, **common) for _ in range(8)))
    assert {one.choices[0].message.content for one in many} == {text}
    try:
        litellm.completion(messages=SAID, **{**common, "model": "hosted_vllm/nobody"})
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("an unknown model was served")
    common["model"], common["api_key"] = "text-completion-openai/tiny", "none"
    assert litellm.text_completion(prompt="A river is", **common).choices[0].text


asyncio.run(main(sys.argv[1]))
