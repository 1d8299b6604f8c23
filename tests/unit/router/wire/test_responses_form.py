"""A Responses body becomes the chat that the engine renders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.responses_form import responses_to_chat


def messages(given_input: object, **fields: Any) -> list[dict[str, Any]]:
    form = responses_to_chat({"input": given_input, **fields})
    assert form is not None
    made: list[dict[str, Any]] = form["messages"]
    return made


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
MADE_CALL = {"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}, "type": "function"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}


def test_text_is_a_user_turn_after_the_instructions() -> None:
    assert messages("hi", instructions="S") == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hi"},
    ]
    assert messages("hi", instructions="") == [{"role": "user", "content": "hi"}]


def test_one_assistant_turn_is_gathered_from_its_items() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    second = {**CALL, "call_id": "c2"}
    assert messages([{"role": "user", "content": "hi"}, thought, SAID, CALL, second]) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "hello",
            "tool_calls": [MADE_CALL, {**MADE_CALL, "id": "c2"}],
        },
    ]


def test_what_the_last_assistant_turn_has_already_begins_another() -> None:
    assert messages([SAID, SAID]) == [{"role": "assistant", "content": "hello"}] * 2


def test_a_tools_output_is_a_tool_turn() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "20"}
    assert messages([CALL, output]) == [
        {"role": "assistant", "tool_calls": [MADE_CALL]},
        {"role": "tool", "content": "20", "tool_call_id": "c1"},
    ]


def test_custom_calls_and_namespaces_are_put_as_functions() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls é"}
    [made] = messages([custom])
    assert made["tool_calls"][0]["function"] == {"name": "sh", "arguments": '{"input": "ls é"}'}
    [made] = messages([{**CALL, "namespace": "ns"}])
    assert made["tool_calls"][0]["function"]["name"] == "ns__f"


@pytest.mark.parametrize("content", ["said", [{"type": "output_text", "text": "said"}, {"text": "dropped"}]])
def test_only_the_first_part_of_an_assistant_turn_counts(content: object) -> None:
    assert messages([{"role": "assistant", "content": content}]) == [{"role": "assistant", "content": "said"}]


def test_other_roles_keep_their_content_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]
    item = {"type": "message", "role": "user", "content": parts}
    assert messages([item]) == [item]


def test_tools_are_put_as_chat_tools() -> None:
    function = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    tools = [
        function,
        {"type": "namespace", "name": "ns", "tools": [{**function, "name": "g"}, {"type": "web_search"}]},
        {"type": "custom", "name": "sh", "description": "run"},
        {"type": "web_search"},
    ]
    form = responses_to_chat({"input": "x", "tools": tools})
    assert form is not None
    assert [tool["function"]["name"] for tool in form["tools"]] == ["f", "ns__g", "sh"]
    assert form["tools"][0]["function"] == {key: function[key] for key in function if key != "type"}
    assert form["tools"][2]["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none(tools: object) -> None:
    form = responses_to_chat({"input": "x", "tools": tools})
    assert form is not None
    assert form["tools"] is None


def test_an_unfinished_last_item_is_continued() -> None:
    form = responses_to_chat({"input": [{**SAID, "status": "incomplete"}]})
    assert form is not None
    assert (form["continue_final_message"], form["add_generation_prompt"]) == (True, False)
    form = responses_to_chat({"input": [{**SAID, "status": "completed"}]})
    assert form is not None
    assert (form["continue_final_message"], form["add_generation_prompt"]) == (False, True)


def test_switches_are_passed_on() -> None:
    form = responses_to_chat(
        {"input": "x", "reasoning": {"effort": "low"}, "chat_template_kwargs": {"a": 1}, "truncation": "auto"}
    )
    assert form is not None
    assert form["reasoning_effort"] == "low"
    assert form["chat_template_kwargs"] == {"a": 1}
    assert form["truncate_prompt_tokens"] == -1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": None},
        {"input": 5},
        {"input": [5]},
        {"input": "x", "previous_response_id": "resp_1"},
        {"input": "x", "instructions": 5},
        {"input": "x", "tools": "x"},
        {"input": "x", "tools": [5]},
        {"input": "x", "tools": [{"type": "function"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "function_call"}]},
        {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
        {"input": [{"role": "assistant", "content": [], "tool_calls": 5}, CALL]},
    ],
)
def test_what_only_the_engine_can_know_has_no_form(fields: dict[str, Any]) -> None:
    assert responses_to_chat(fields) is None


def test_the_clients_items_are_not_changed() -> None:
    turn = {"role": "assistant", "content": [], "tool_calls": [MADE_CALL]}
    messages([turn, CALL])
    assert turn == {"role": "assistant", "content": [], "tool_calls": [MADE_CALL]}


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["assistant", "user", "function_call", "reasoning", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "summary", "name", "arguments", "tools", "status"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["input", "instructions", "tools", "reasoning", "truncation"]), _json))
def test_nothing_a_client_may_send_raises(fields: dict[str, Any]) -> None:
    form = responses_to_chat(fields)
    assert form is None or all(type(message) is dict for message in form["messages"])
