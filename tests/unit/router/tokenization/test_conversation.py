"""Messages and tools reach the template in the shape an engine gives them."""

from __future__ import annotations

from typing import Any

import pytest

from router.tokenization.conversation import (
    MEDIA_MARK,
    build_conversation,
    build_tools,
    fold_developer_turns,
    holds_media,
)
from router.tokenization.errors import NotRenderable


def as_text(*messages: Any) -> list[dict[str, Any]]:
    return build_conversation(list(messages), "string").messages


def as_parts(*messages: Any) -> list[dict[str, Any]]:
    return build_conversation(list(messages), "openai").messages


def call(arguments: object, **more: object) -> dict[str, Any]:
    return {"type": "function", "id": "c1", "function": {"name": "f", "arguments": arguments}, **more}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        ("hi", "hi", ["hi"]),
        ("", "", [""]),
        (None, "", []),
        ([], "", []),
        (["a", "b"], "a\nb", ["a", "b"]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb", ["a", "b"]),
        ([{"type": "text", "text": ""}, {"type": "text", "text": "b"}], "b", ["", "b"]),
        ([{"type": "text", "text": None}, {"type": "refusal", "refusal": "no"}], "no", ["no"]),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb", ["a", "b"]),
        ([{"type": "thinking", "thinking": "hm", "closed": True}], "hm", ["hm"]),
    ],
)
def test_content_is_flattened_or_wrapped_by_the_templates_format(content: object, text: str, parts: list[str]) -> None:
    assert as_text(user(content)) == [user(text)]
    assert as_parts(user(content)) == [user([{"type": "text", "text": part} for part in parts])]


def test_fields_the_engine_does_not_know_are_dropped() -> None:
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    assert as_parts({"role": "user", "content": [part], "name": "bob", "weight": 1}) == [
        {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "bob"}
    ]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"b": 1.0, "a": "é"}', {"b": 1.0, "a": "é"}),
        ({"b": 1}, {"b": 1}),
        ("", {}),
        (None, {}),
        ("not json", {}),
        ("[1]", {}),
        ("42", {}),
        ("[" * 100_000, {}),
    ],
)
def test_tool_call_arguments_are_objects(arguments: object, seen: dict[str, Any]) -> None:
    [message] = as_text({"role": "assistant", "content": None, "tool_calls": [call(arguments, index=0)]})
    assert message["tool_calls"] == [{"id": "c1", "function": {"arguments": seen, "name": "f"}, "type": "function"}]
    assert message["content"] == ""
    # Templates that print a whole call print its keys in the schema's order.
    assert list(message["tool_calls"][0]) == ["id", "function", "type"]
    assert list(message["tool_calls"][0]["function"]) == ["arguments", "name"]


def test_an_empty_list_of_tool_calls_is_none() -> None:
    assert as_text({"role": "assistant", "content": "x", "tool_calls": []}) == [{"role": "assistant", "content": "x"}]


def test_the_clients_messages_are_not_changed() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call('{"a":1}')]}
    as_text(message)
    assert message["tool_calls"] == [call('{"a":1}')]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_there_under_every_name_templates_use(name: str) -> None:
    [message] = as_text({"role": "assistant", "content": "x", name: "because"})
    assert (message["reasoning"], message["reasoning_content"], message["thinking"]) == ("because",) * 3


def test_a_tools_answer_is_text_even_where_parts_are_wanted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    expected = [{"role": "tool", "content": "a\nb", "tool_call_id": "c1"}]
    assert as_parts({"role": "tool", "content": parts, "tool_call_id": "c1"}) == expected


def test_references_to_tools_stay_parts() -> None:
    reference = {"type": "tool_reference", "name": "f"}
    assert as_parts({"role": "tool", "content": [reference]}) == [{"role": "tool", "content": [reference]}]


def test_the_line_that_marks_each_request_is_dropped_from_system_text() -> None:
    header = "x-anthropic-billing-header: cch=12345"
    assert as_text({"role": "system", "content": f"{header}\nBe brief."}) == [
        {"role": "system", "content": "Be brief."}
    ]
    parts = [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]
    assert as_text({"role": "system", "content": parts}) == [{"role": "system", "content": "Be brief."}]
    assert as_text(user(header)) == [user(header)]


def test_media_leave_a_mark_where_the_template_would_put_their_tokens() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "look"}, image]
    wrapped = build_conversation([user(content)], "openai")
    assert wrapped.has_media
    assert [part["text"] for part in wrapped.messages[0]["content"]] == ["look", MEDIA_MARK]
    flat = build_conversation([user(content)], "string")
    assert flat.messages[0]["content"] == MEDIA_MARK + "\nlook"
    assert holds_media([user(content)])
    assert not holds_media([user("x"), user([{"type": "text", "text": "x"}]), 5])


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "hi",
        {"role": "user"},
        [5],
        [None],
        [{"content": "x"}],
        [{"role": 5, "content": "x"}],
        [user(5)],
        [user({"text": "x"})],
        [user([5])],
        [user([{"type": "text", "text": 5}])],
        [user([{"type": "hologram"}])],
        [user([{"type": ["text"]}])],
        [user([{"text": "x"}])],
        [{"role": "assistant", "tool_calls": "x"}],
        [{"role": "assistant", "tool_calls": [5]}],
        [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}],
        [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
    ],
)
def test_what_an_engine_refuses_cannot_be_rendered(messages: object) -> None:
    for content_format in ("string", "openai"):
        with pytest.raises(NotRenderable):
            build_conversation(messages, content_format)


def test_tools_are_printed_with_known_fields_in_schema_order() -> None:
    tools = [
        {"function": {"parameters": {"type": "object"}, "strict": True, "name": "f", "x": 1}, "extra": 2},
        {"type": "function", "function": {"name": "g"}, "defer_loading": True},
    ]
    built = build_tools(tools)
    assert built == [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": {"type": "object"}, "strict": True},
        },
        {
            "type": "function",
            "function": {"name": "g", "description": None, "parameters": None, "defer_loading": True},
            "defer_loading": True,
        },
    ]
    assert built is not None
    assert list(built[0]["function"]) == ["name", "description", "parameters", "strict"]


def test_no_tools_and_an_empty_list_are_told_apart() -> None:
    assert build_tools(None) is None
    assert build_tools([]) == []


@pytest.mark.parametrize("tools", ["x", {}, [5], [{}], [{"function": {}}], [{"function": {"name": 1}}]])
def test_tools_an_engine_refuses_cannot_be_rendered(tools: object) -> None:
    with pytest.raises(NotRenderable):
        build_tools(tools)


def test_developer_turns_become_one_system_turn_in_front() -> None:
    folded = fold_developer_turns(
        [{"role": "system", "content": "a"}, user("hi"), {"role": "developer", "content": "b", "tools": None}]
    )
    assert folded == [{"role": "system", "content": "a\n\nb"}, user("hi")]


def test_a_developer_turn_in_front_is_only_renamed() -> None:
    parts = [{"type": "text", "text": "b"}]
    assert fold_developer_turns([{"role": "developer", "content": parts, "tools": None}, user("hi")]) == [
        {"role": "system", "content": parts},
        user("hi"),
    ]
