"""Makes a model small enough for tests: run by the vLLM environment's Python as `tiny_model.py FOLDER`.

A byte-level BPE of 2,048 tokens trained on the language's own documentation, a ChatML template that prints tools and
tool calls, a Llama of two layers with random weights, and two LoRA adapters. Same seeds, same files.

FOLDER/            the model; its template prints a message's content as text
FOLDER/parts/      the same with a template that loops over content parts
FOLDER/lora-a, -b  adapters
"""

from __future__ import annotations

import json
import pydoc_data.topics
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 2048
LENGTH = 4096
SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>")

_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- text(messages[0].content) + '\\n\\n' }}{%- endif %}
{{- 'Tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + text(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- text(message.content) }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
AS_TEXT = "{%- macro text(content) %}{{- content }}{%- endmacro %}\n{{- bos_token }}\n" + _TOOLS
AS_PARTS = (
    "{%- macro text(content) %}{%- if content is string %}{{- content }}{%- else %}"
    "{%- for part in content %}{{- part.text }}{%- endfor %}{%- endif %}{%- endmacro %}\n{{- bos_token }}\n" + _TOOLS
)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    pattern = Regex(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, behavior="isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    # As Llama's: a plain prompt gets a beginning-of-sequence token, a rendered chat brings its own.
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]),
        ]
    )
    return made


def save_tokenizer(folder: Path, template: str) -> None:
    tokenizer().save(str(folder / "tokenizer.json"))
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": LENGTH,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(declared, indent=1))


def save_model(folder: Path) -> LlamaConfig:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=LENGTH,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
        # Wide enough that what is said depends on what was read: a wrong hand-off then changes the answer.
        initializer_range=0.3,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return config


def save_adapter(folder: Path, seed: int, config: LlamaConfig) -> None:
    folder.mkdir()
    torch.manual_seed(seed)
    rank, hidden = 8, config.hidden_size
    sizes = {"q_proj": hidden, "v_proj": config.num_key_value_heads * config.head_dim}
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, size in sizes.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{key}.lora_A.weight"] = torch.randn(rank, hidden) * 0.3
            weights[f"{key}.lora_B.weight"] = torch.randn(size, rank) * 0.3
    save_file(weights, str(folder / "adapter_model.safetensors"))
    declared = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(sizes),
    }
    (folder / "adapter_config.json").write_text(json.dumps(declared, indent=1))


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    config = save_model(folder)
    save_tokenizer(folder, AS_TEXT)
    save_adapter(folder / "lora-a", 11, config)
    save_adapter(folder / "lora-b", 13, config)
    parts = folder / "parts"
    parts.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(folder / name, parts / name)
    save_tokenizer(parts, AS_PARTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
