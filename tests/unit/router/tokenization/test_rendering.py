"""The prompt's text is what transformers and vLLM would make of the request, for each trap that templates set."""

from __future__ import annotations

from typing import Any

import pytest

from router.tokenization.errors import NotRenderable
from router.tokenization.template import ChatTemplate, TemplateSyntaxError
from tests.support.tokenization import CHATML, noon, rendered, renderer

HI = [{"role": "user", "content": "hi"}]


def test_a_conversation_is_rendered_with_a_generation_prompt_by_default() -> None:
    messages = [{"role": "system", "content": "S"}, *HI]
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(CHATML, messages) == text + "<|im_start|>assistant\n"
    assert rendered(CHATML, messages, add_generation_prompt=False) == text


def test_a_next_turn_extends_the_prompt_before_it() -> None:
    turns = [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    assert rendered(CHATML, turns).startswith(rendered(CHATML, HI))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("   {% if true %}a{% endif %}", "a"),
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<|bos|><|eos|>"),
        ("{{ messages[0].nothing }}|{{ messages[0]['nothing'] }}", "|"),
        ("{{ messages[0] | length }} {{ messages[0].keys() | list | join(',') }}", "2 role,content"),
        ("{{ messages[0].get('role') }}", "user"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}|", "|"),
        ("{% for m in messages %}a{% break %}b{% endfor %}", "a"),
        ("{% generation %}g{{ messages[0].content }}{% endgeneration %}", "ghi"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{{ dict(a=1) | tojson }}", '{"a": 1}'),
        ("{{ strftime_now('%d %B %Y') }}", "01 July 2026"),
        ("{{ tools is none }} {{ documents is none }} {{ tools is defined }}", "True True True"),
        ("{{ thinking is defined }} {{ enable_thinking is defined }}", "False False"),
        ("{{ '<a> & \"b\" é' }}", '<a> & "b" é'),
    ],
)
def test_templates_find_the_environment_they_were_written_for(template: str, text: str) -> None:
    assert rendered(template, HI) == text


def test_json_is_printed_without_html_escapes_and_in_the_order_given() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"z": "<é&'>", "a": [1, 1.5]}}}]
    text = '{"name": "f", "description": null, "parameters": {"z": "<é&\'>", "a": [1, 1.5]}}'
    assert rendered("{{ tools[0].function | tojson }}", HI, tools=tools) == text
    indented = rendered("{{ tools[0].function.parameters.a | tojson(indent=2) }}", HI, tools=tools)
    assert indented == "[\n  1,\n  1.5\n]"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content.x.y }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__x=1) %}",
        "{{ 1 / 0 }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ range(10000000) | list }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_refuses_or_fails_gives_no_text(template: str) -> None:
    with pytest.raises(NotRenderable):
        rendered(template, HI)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.__class__ }}",
        "{{ messages[0].__class__ }}{{ messages[0]['__class__'] }}",
        "{% for m in messages %}{{ loop.__class__ }}{{ loop._iterator }}{% endfor %}",
        "{% set ns = namespace(a=1) %}{{ ns.__class__ }}{{ ns._Namespace__attrs }}",
        "{{ messages[0].content.join.__self__ }}",
        "{{ messages[0].content | attr('__class__') }}",
    ],
)
def test_a_template_sees_nothing_of_python(template: str) -> None:
    assert rendered(template, HI) == ""


@pytest.mark.parametrize("formatting", ["format(a=1)", "format_map({'a': 1})"])
def test_formatting_does_not_reach_around_the_sandbox(formatting: str) -> None:
    assert (
        rendered("{{ messages[0].content." + formatting + " }}", [{"role": "user", "content": "{a.__class__}"}]) == ""
    )


def test_a_refusal_does_not_repeat_the_prompt() -> None:
    with pytest.raises(NotRenderable) as refused:
        rendered("{{ raise_exception(messages[0].content) }}", [{"role": "user", "content": "secret words"}])
    assert "secret" not in str(refused.value)


def test_a_template_that_does_not_compile_is_an_error_at_once() -> None:
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate("{% for %}", noon)


def test_request_fields_win_over_kwargs_and_kwargs_over_special_tokens() -> None:
    template = "{{ bos_token }} {{ add_generation_prompt }} {{ documents | length }} {{ color }}"
    kwargs = {"bos_token": "B", "add_generation_prompt": False, "documents": [1, 2, 3], "color": "red"}
    assert rendered(template, HI, chat_template_kwargs=kwargs, documents=[{"text": "x"}]) == "B True 1 red"


@pytest.mark.parametrize(
    ("effort", "kwargs", "text"),
    [
        ("low", None, "low True"),
        ("none", None, "none False"),
        ("low", {"enable_thinking": False}, "low False"),
        (None, {"enable_thinking": True}, " True"),
        (None, {"enable_thinking": None}, " "),
        ("auto", None, " True"),
    ],
)
def test_reasoning_effort_switches_thinking(effort: str | None, kwargs: dict[str, Any] | None, text: str) -> None:
    template = "{{ reasoning_effort }} {{ enable_thinking }}"
    assert rendered(template, HI, reasoning_effort=effort, chat_template_kwargs=kwargs) == text


def test_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    named = renderer("plain", tool_use="tools: {{ tools | length }}")
    assert named.render({"messages": HI}).text == "plain"
    assert named.render({"messages": HI, "tools": []}).text == "tools: 0"
    assert named.render({"messages": HI, "tools": None}).text == "plain"


def test_developer_turns_are_folded_only_for_templates_that_know_none() -> None:
    turns = [*HI, {"role": "developer", "content": "D"}]
    assert rendered("{% for m in messages %}{{ m.role }} {% endfor %}", turns) == "system user "
    assert rendered("{% for m in messages %}{{ m.role }} {% endfor %}{# 'developer' #}", turns) == "user developer "


class TestContinuingTheFinalMessage:
    """``continue_final_message`` leaves the last message open."""

    switches: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}  # noqa: RUF012

    def turns(self, content: object) -> list[dict[str, Any]]:
        return [*HI, {"role": "assistant", "content": content}]

    @pytest.mark.parametrize("content", ["The answer is", "The answer is ", "The <|im_end|>\n answer"])
    def test_the_text_ends_with_its_content(self, content: str) -> None:
        text = rendered(CHATML, self.turns(content), **self.switches)
        assert text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{content}"

    def test_a_template_that_trims_gets_trimmed_text(self) -> None:
        trimming = CHATML.replace("message.content", "message.content.strip()")
        assert rendered(trimming, self.turns("The answer is "), **self.switches).endswith("assistant\nThe answer is")

    def test_the_last_part_is_the_one_continued(self) -> None:
        template = (
            "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}"
            "{% if m.role == 'assistant' %}END{% endif %}{% endfor %}"
        )
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert rendered(template, self.turns(parts), **self.switches) == "[hi][a][b"

    @pytest.mark.parametrize(
        ("template", "messages", "switches"),
        [
            (CHATML, HI, {"continue_final_message": True}),
            (CHATML, [], switches),
            ("{{ messages[0].role }} content", HI, switches),
            ("{{ messages[0].role }}", HI, switches),
            ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", [{"role": "user"}], switches),
        ],
    )
    def test_what_cannot_be_continued_cannot_be_rendered(
        self, template: str, messages: list[dict[str, Any]], switches: dict[str, Any]
    ) -> None:
        with pytest.raises(NotRenderable):
            rendered(template, messages, **switches)


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "x"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": "x"},
        {"chat_template_kwargs": [1]},
        {"add_generation_prompt": "yes"},
        {"continue_final_message": 1},
        {"tools": "x"},
        {"messages": None},
    ],
)
def test_what_only_the_engine_can_judge_is_left_to_it(fields: dict[str, Any]) -> None:
    with pytest.raises(NotRenderable):
        renderer().render({"messages": HI, **fields})


def test_text_is_cut_at_the_first_media() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    image = {"type": "image_url", "image_url": {"url": "http://nowhere.invalid/x.png"}}
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": ["look", image, image, "there"]}]
    cut = renderer(template).render({"messages": turns})
    assert cut == ("<system>(S)<user>(look)(", ")()(there)")


def test_the_templates_own_taste_is_known_to_the_other_apis() -> None:
    strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('') }}{% endif %}"
    assert ChatTemplate(strict + "{% endfor %}", noon).wants_system_first
    assert not ChatTemplate(CHATML, noon).wants_system_first
    assert renderer("{{ enable_thinking }}").thinking_off_effort == "none"
    assert renderer("{{ messages[0].content }}").thinking_off_effort == "low"
    refusing = "{% if reasoning_effort == 'none' %}{{ raise_exception('') }}{% endif %}"
    assert renderer(refusing).thinking_off_effort == "low"
