"""The prompt text of a chat request. PURE.

Puts together what the template is given (messages, tools, documents, switches, special tokens) by the rules of vLLM
0.32 and transformers 5: request fields win over ``chat_template_kwargs``, which win over special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from router.tokenization.conversation import MEDIA_MARK, build_conversation, build_tools, fold_developer_turns
from router.tokenization.errors import NotRenderable
from router.tokenization.template import ChatTemplate

_CONTINUE_MARK = "\ue0ff\uf8f1kvrouter-continue\uf8f1\ue0ff"
_RESERVED = frozenset({"chat_template", "tokenize", "messages"})
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Rendered(NamedTuple):
    """A prompt's text. With media, `text` is what comes before the first of them, and `rest` what follows."""

    text: str
    rest: str | None = None
    """None: no media, `text` is the whole prompt."""


class ChatRenderer:
    """Renders chat requests with a model's template, or templates by name, and its special tokens."""

    def __init__(self, templates: Mapping[str, ChatTemplate], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)

    def template_for(self, tools: object) -> ChatTemplate:
        """The one that a request with these `tools` gets. Raises `NotRenderable` when there is none."""
        template = self._templates.get("tool_use") if tools is not None else None
        template = template or self._templates.get("default")
        if template is None:
            raise NotRenderable("the model has no chat template")
        return template

    @cached_property
    def thinking_off_effort(self) -> str:
        """The ``reasoning_effort`` that vLLM puts for Anthropic's disabled thinking: "none" if this template knows it.

        A template that renders "none" as it renders some other effort, or refuses it, gets "low".
        """
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": "t"}]}
        try:
            off = self.render({**fields, "reasoning_effort": "none"})
        except NotRenderable:
            return "low"
        for effort in _EFFORTS:
            try:
                if self.render({**fields, "reasoning_effort": effort}) == off:
                    return "low"
            except NotRenderable:
                continue
        return "none"

    def render(self, fields: Mapping[str, Any]) -> Rendered:
        """`fields` are those of a chat body (`router.wire.openai.RENDER_FIELDS`). Raises `NotRenderable`."""
        tools = build_tools(fields.get("tools"))
        switches = _switches(fields)
        template = self.template_for(switches.get("tools", tools))
        conversation = build_conversation(fields.get("messages"), template.content_format)
        messages = conversation.messages
        if not template.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = fold_developer_turns(messages)
        variables = {
            **self._special_tokens,
            "tools": tools,
            "documents": None,
            **switches,
            "messages": messages,
        }
        if variables.pop("continue_final_message", False):
            text = _render_continued(template, variables)
        else:
            text = template.render(variables)
        if not conversation.has_media:
            return Rendered(text)
        before, mark, after = text.partition(MEDIA_MARK)
        # A template may drop the message that held the media; then nothing was cut.
        return Rendered(before, after.replace(MEDIA_MARK, "")) if mark else Rendered(text)


def _switches(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the template is told besides messages, tools and special tokens."""
    if fields.get("chat_template"):
        # An engine refuses a client's template unless it is told to trust it, and then only it knows the text.
        raise NotRenderable("the request brings its own chat template")
    kwargs = fields.get("chat_template_kwargs")
    if kwargs is None:
        kwargs = {}
    if type(kwargs) is not dict or not _RESERVED.isdisjoint(kwargs):
        raise NotRenderable("chat_template_kwargs are not what an engine takes")
    given = {
        "add_generation_prompt": _flag(fields, "add_generation_prompt", True),
        "continue_final_message": _flag(fields, "continue_final_message", False),
        "documents": fields.get("documents"),
        "reasoning_effort": fields.get("reasoning_effort"),
    }
    if given["add_generation_prompt"] and given["continue_final_message"]:
        raise NotRenderable("a generation prompt and a continued message exclude each other")
    effort = given["reasoning_effort"]
    if effort is not None and "enable_thinking" not in kwargs:
        given["enable_thinking"] = effort != "none"
    return {**_set(kwargs), **_set(given)}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    # vLLM's merge takes neither None nor "auto" for a value.
    return {key: value for key, value in values.items() if value is not None and value != "auto"}


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if type(value) is not bool:
        raise NotRenderable(f"{name} is not a boolean")
    return value


def _render_continued(template: ChatTemplate, variables: dict[str, Any]) -> str:
    """The text up to the end of the last message: a mark appended to its content is cut off with all that follows."""
    messages = variables["messages"]
    if not messages or "content" not in template.source:
        raise NotRenderable("there is no final message to continue")
    last = dict(messages[-1])
    content = last.get("content")
    if type(content) is str:
        final = content
        last["content"] = content + _CONTINUE_MARK + " "
    else:
        parts = [dict(part) for part in content or ()]
        text = next((part for part in reversed(parts) if "text" in part), None)
        if text is None:
            raise NotRenderable("the final message has no text to continue")
        final = text["text"]
        text["text"] = final + _CONTINUE_MARK + " "
        last["content"] = parts
    rendered = template.render({**variables, "messages": [*messages[:-1], last]})
    before, mark, after = rendered.rpartition(_CONTINUE_MARK)
    if not mark or final.strip() not in rendered:
        raise NotRenderable("the template drops the final message")
    # A template that kept the space behind the mark keeps trailing space; one that trimmed would have trimmed the text.
    return before if after.startswith(" ") else before.rstrip()
