"""What `transformers` makes of chats with public vocabularies and templates: run by the vLLM environment's Python.

    reference.py VOCABULARIES TEMPLATES < {"case": {"messages": [...], "tools": [...] or null, ...}}

Prints {vocabulary: {template: {case: token ids, or null if it is refused}}}; template "" is the own one.
Where vLLM takes a template for one that loops over content parts, contents are given as parts, as vLLM gives them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast
from vllm.renderers.hf import _detect_content_format


def main(vocabularies: Path, templates: Path) -> None:
    cases: dict[str, dict[str, Any]] = json.load(sys.stdin)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(templates.glob("*.jinja"))}
    found: dict[str, dict[str, dict[str, list[int] | None]]] = {}
    for folder in sorted(vocabularies.glob("*/models")):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        own = {"": None} if tokenizer.chat_template else {}
        found[folder.parent.name] = {
            name: {case: ids_of(tokenizer, text, asked) for case, asked in cases.items()}
            for name, text in {**own, **texts}.items()
        }
    json.dump(found, sys.stdout)


def ids_of(tokenizer: PreTrainedTokenizerFast, template: str | None, asked: dict[str, Any]) -> list[int] | None:
    if _detect_content_format(template or tokenizer.chat_template, default="string") == "openai":
        asked = {**asked, "conversation": [in_parts(message) for message in asked["conversation"]]}
    try:
        text = tokenizer.apply_chat_template(**asked, chat_template=template, tokenize=False)
    except (TemplateError, TypeError, ValueError, KeyError, IndexError):
        return None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
