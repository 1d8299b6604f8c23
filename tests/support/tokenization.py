"""Small tokenizers, model folders, requests and endpoint states for tests of tokenization."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from router.core import Api, Endpoint, EndpointState, Health, InferenceRequest, ModelCard
from router.tokenization.rendering import ChatRenderer
from router.tokenization.template import ChatTemplate

CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SPECIAL = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
NOON = datetime(2026, 7, 1, 12, 0, 0)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog and then, tired of jumping, sleeps until the next morning.",
    "You are a helpful assistant. Answer in short sentences and say so when you do not know.",
    "def answer(question):\n    return {'answer': question, \"sure\": False}  # never sure\n",
    "user assistant system tool developer one two three four five six seven eight nine ten",
    "naïve café straße 日本語のテキスト 中文字符 한국어 😀 12345 67890",
)


def noon() -> datetime:
    return NOON


def small_tokenizer(*, adds_bos: bool = False) -> tokenizers.Tokenizer:
    """A byte-level BPE of a few hundred tokens; with `adds_bos` it puts ``<|bos|>`` in front of a text by itself."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
        )
    return tokenizer


def model_folder(
    path: Path,
    *,
    template: str | None = CHATML,
    config: Mapping[str, Any] | None = None,
    tokenizer: tokenizers.Tokenizer | None = None,
) -> Path:
    """A folder as a model repository has it, without weights."""
    path.mkdir(parents=True, exist_ok=True)
    (tokenizer or small_tokenizer()).save(str(path / "tokenizer.json"))
    declared = {"bos_token": "<|bos|>", "eos_token": {"__type": "AddedToken", "content": "<|eos|>"}}
    if template is not None:
        declared["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(declared | dict(config or {})), encoding="utf-8")
    return path


def renderer(template: str = CHATML, **named: str) -> ChatRenderer:
    """A renderer of one template, or of more by name."""
    sources = {"default": template, **named}
    return ChatRenderer(
        {name: ChatTemplate(source, noon) for name, source in sources.items()},
        {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
    )


def rendered(template: str, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The text of a chat request with this template."""
    return renderer(template).render({"messages": messages, **fields}).text


def request(
    api: Api = Api.CHAT, *, model: str | None = "m", body: bytes = b"{}", cache_salt: str | None = None, **fields: Any
) -> InferenceRequest:
    return InferenceRequest(
        request_id="r",
        api=api,
        path="/v1/x",
        body=body,
        headers=(),
        model=model,
        cache_salt=cache_salt,
        fields=fields,
    )


def card(name: str = "m", root: str | None = "base", parent: str | None = None, length: int | None = None) -> ModelCard:
    return ModelCard(id=name, root=root, parent=parent, max_model_len=length)


def state(
    name: str = "e1",
    *cards: ModelCard,
    block_size: int | None = 16,
    health: Health = Health.HEALTHY,
) -> EndpointState:
    return EndpointState(
        endpoint=Endpoint(id=name, url=f"http://{name}"),
        health=health,
        models={one.id: one for one in cards},
        block_size=block_size,
    )
