"""An Anthropic Messages body becomes the chat that the engine renders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.messages_form import messages_to_chat

HI = {"role": "user", "content": "hi"}


def form(*turns: object, system_first: bool = False, **fields: Any) -> dict[str, Any]:
    made = messages_to_chat({"messages": list(turns), **fields}, system_first=system_first, thinking_off_effort="low")
    assert made is not None
    return made


def messages(*turns: object, **fields: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = form(*turns, **fields)["messages"]
    return made


def test_system_text_comes_first_and_its_blocks_are_joined() -> None:
    assert messages(HI, system="S") == [{"role": "system", "content": "S"}, HI]
    header = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}
    blocks = [header, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(HI, system=blocks) == [{"role": "system", "content": "ab"}, HI]
    assert messages(HI, system=[header]) == [HI]


def test_a_late_system_turn_moves_to_the_front_only_where_the_template_needs_it() -> None:
    late = {"role": "system", "content": [{"type": "text", "text": "L"}]}
    assert messages(HI, late, system="S") == [
        {"role": "system", "content": "S"},
        HI,
        {"role": "system", "content": "L"},
    ]
    assert messages(HI, late, system="S", system_first=True) == [{"role": "system", "content": "SL"}, HI]


def test_one_text_block_is_text_and_more_are_parts() -> None:
    a, b = {"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}
    assert messages({"role": "user", "content": [a]}) == [{"role": "user", "content": "a"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": [a, b]}) == [{"role": "user", "content": parts}]


def test_an_assistant_turn_keeps_its_thoughts_and_calls() -> None:
    turn = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "h", "signature": "x"},
            {"type": "thinking", "thinking": "m"},
            {"type": "redacted_thinking", "data": "zz"},
            {"type": "text", "text": "let me look"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ],
    }
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert messages(turn) == [{"role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "let me look"}]


def test_a_tools_result_comes_before_the_turn_that_brought_it() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "0"}],
    }
    assert messages({"role": "user", "content": [result, {"type": "text", "text": "and?"}]}) == [
        {"role": "tool", "tool_call_id": "c1", "content": "2\n0"},
        {"role": "user", "content": "and?"},
    ]
    alone = {"type": "tool_result", "tool_use_id": "c1", "content": "20"}
    assert messages({"role": "user", "content": [alone]}) == [{"role": "tool", "tool_call_id": "c1", "content": "20"}]


def test_images_and_references_of_a_tools_result_follow_it() -> None:
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
        {"type": "tool_reference", "tool_name": "g"},
    ]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": content}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert messages({"role": "user", "content": [result]}) == [
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "user", "content": [image]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_reference", "name": "g"}]},
    ]


def test_images_are_put_as_urls() -> None:
    block = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    [turn] = messages({"role": "user", "content": [block]})
    assert turn["content"] == [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]


def test_tools_are_put_as_chat_tools_with_an_object_schema() -> None:
    made = form(HI, tools=[{"name": "f", "input_schema": {"properties": {}}}])
    [tool] = made["tools"]
    assert tool["function"]["parameters"] == {"properties": {}, "type": "object"}
    assert form(HI)["tools"] is None


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, None),
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"output_config": {"effort": "high"}}, "high"),
        ({"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}, "low"),
    ],
)
def test_thinking_is_put_as_reasoning_effort(fields: dict[str, Any], effort: str | None) -> None:
    assert form(HI, **fields)["reasoning_effort"] == effort


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": "x"},
        {"messages": [5]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        {"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]},
        {"messages": [HI], "system": 5},
        {"messages": [HI], "tools": [{"name": "f"}]},
    ],
)
def test_what_only_the_engine_can_know_has_no_form(fields: dict[str, Any]) -> None:
    assert messages_to_chat(fields, system_first=False) is None


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["assistant", "user", "text", "tool_use", "tool_result"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "source", "input", "thinking", "name", "effort"]), inner
        )
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["messages", "system", "tools", "thinking", "output_config"]), _json), st.booleans()
)
def test_nothing_a_client_may_send_raises(fields: dict[str, Any], system_first: bool) -> None:
    made = messages_to_chat(fields, system_first=system_first)
    assert made is None or all(type(message) is dict for message in made["messages"])
