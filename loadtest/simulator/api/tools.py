"""Tool calls that look like a model's: which tool is called, with which arguments, and how the call is streamed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from loadtest.simulator.sampler import json_value
from loadtest.simulator.text import SimTokenizer

_OPEN = '<tool_call>\n{"name": %s, "arguments": '
_CLOSE = "}\n</tool_call>"


class ToolCall(msgspec.Struct, frozen=True):
    """A planned call.

    `fragments` holds, for each token, what it adds to the arguments (None: it belongs to the frame).
    """

    call_id: str
    name: str
    arguments: str
    token_ids: Sequence[int]
    fragments: Sequence[str | None]

    def message(self) -> dict[str, Any]:
        """The call as a member of ``message.tool_calls``."""
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def deltas(self, positions: range) -> list[dict[str, Any]]:
        """The deltas for the tokens at `positions`: the call's head with the first argument token, then its
        arguments.
        """
        first = next((i for i, f in enumerate(self.fragments) if f is not None), len(self.fragments))
        found: list[dict[str, Any]] = []
        if first in positions:
            head = {"id": self.call_id, "type": "function", "index": 0}
            found.append({"tool_calls": [{**head, "function": {"name": self.name, "arguments": ""}}]})
        text = "".join(self.fragments[i] or "" for i in positions)
        if text:
            found.append({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        return found


def wanted_tool(body: dict[str, Any], messages: Sequence[Any], rng: random.Random) -> tuple[dict[str, Any] | None, str]:
    """(the function to call or None for text, the finish reason of the call).

    A named or required choice is obeyed. With "auto" a tool is called when the last word is the user's, and its result
    is answered in text.
    """
    functions = [
        t["function"] for t in body.get("tools") or [] if isinstance(t, dict) and isinstance(t.get("function"), dict)
    ]
    choice = body.get("tool_choice", "auto" if functions else "none")
    if not functions or choice == "none":
        return None, ""
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        return next((f for f in functions if f.get("name") == name), functions[0]), "stop"
    last = messages[-1].get("role") if messages and isinstance(messages[-1], dict) else None
    if choice == "required" or last == "user":
        return rng.choice(functions), "tool_calls"
    return None, ""


def plan_tool_call(tokenizer: SimTokenizer, function: dict[str, Any], rng: random.Random) -> ToolCall:
    """A call of `function` with plausible arguments."""
    name = str(function.get("name", "function"))
    arguments = json.dumps(json_value(rng, function.get("parameters") or {"type": "object"}), ensure_ascii=False)
    opening = _OPEN % json.dumps(name, ensure_ascii=False)
    text = opening + arguments + _CLOSE
    ids = tokenizer.encode_now(text, special=False)
    begin, end = len(opening), len(opening) + len(arguments)
    fragments: list[str | None] = []
    position = 0
    for token in ids:
        after = position + len(tokenizer.piece(token))
        inside = text[max(position, begin) : min(after, end)]
        fragments.append(inside or None)
        position = after
    call_id = f"chatcmpl-tool-{UUID(int=rng.getrandbits(128)).hex[:16]}"
    return ToolCall(call_id, name, arguments, ids, fragments)
