"""A template's content format is found the way the engine finds it."""

from __future__ import annotations

import pytest

from router.tokenization.template import ChatTemplate
from tests.support.tokenization import noon

PARTS = [
    "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content | list %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content[1:] %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% set a = messages %}{% set b = a | reverse %}{% for m in b %}{% for p in m.content %}x{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}",
    "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(c=m['content']) }}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
]
TEXT = [
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{{ messages[0].content }}",
    "no variables at all",
    "{% for m in messages %}{% for call in m.tool_calls %}{{ call }}{% endfor %}{{ m.content }}{% endfor %}",
    "{% for m in other %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% macro show(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.name) }}{% endfor %}",
    "{% for i, m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for a, b in m.content %}{{ a }}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", PARTS)
def test_a_template_that_loops_over_content_gets_parts(source: str) -> None:
    assert ChatTemplate(source, noon).content_format == "openai"


@pytest.mark.parametrize("source", TEXT)
def test_any_other_template_gets_text(source: str) -> None:
    assert ChatTemplate(source, noon).content_format == "string"
