"""SimTokenizer: text to token ids and back, and chats to prompts, for one model of the simulator."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from loadtest.simulator.sampler import WordList
from loadtest.simulator.settings import SimulatorConfigError

_LONG_TEXT = 8192
"""Characters from which encoding leaves the event loop."""
_CACHE_CHARS = 4_000_000
_VOCABULARY_LOOKED_AT = 20_000
_ENOUGH_WORDS = 200
_DERIVED = re.compile(r"(?:able|ness|less|ful|ment|ly|er|ers|ing|ed)$")
"""Word forms that read oddly when thrown together."""


class TemplateError(Exception):
    """The chat template refused the messages; the message is the template's own."""


class _EncodingCache:
    """Token ids of texts seen lately; a hand-off's two legs encode the same prompt. Bounded by characters."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._chars = 0

    def get(self, text: str) -> tuple[int, ...] | None:
        ids = self._entries.get(text)
        if ids is not None:
            self._entries.move_to_end(text)
        return ids

    def put(self, text: str, ids: tuple[int, ...]) -> None:
        if text in self._entries:
            return
        self._entries[text] = ids
        self._chars += len(text)
        while self._chars > _CACHE_CHARS and len(self._entries) > 1:
            old, _ids = self._entries.popitem(last=False)
            self._chars -= len(old)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class SimTokenizer:
    """Holds a tokenizer and its chat template. May be shared by any number of engines of one event loop."""

    def __init__(self, tokenizer: Tokenizer, template: str | None, variables: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        self._template = environment.from_string(template) if template else None
        self._cache = _EncodingCache()
        self._pieces: dict[int, str] = {}
        self._json_pieces: dict[int, bytes] = {}
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.words = self._choose_words()

    @classmethod
    def load(cls, folder: Path) -> SimTokenizer:
        """From tokenizer.json and tokenizer_config.json (and chat_template.jinja if there).

        Raises SimulatorConfigError.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise SimulatorConfigError(f"tokenizer: {folder} holds no tokenizer.json; give a folder that does")
        config: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").is_file():
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        template = config.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        variables = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = config.get(name)
            variables[name] = value.get("content") if isinstance(value, dict) else (value or "")
        return cls(Tokenizer.from_file(str(file)), template, variables)

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt text of a chat. Raises TemplateError."""
        if self._template is None:
            return "\n".join(f"{m.get('role')}: {m.get('content') or ''}" for m in messages) + "\nassistant: "
        try:
            return self._template.render(messages=messages, **{**self._variables, **variables})
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateError(str(error)) from error

    async def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text; `special` adds what the tokenizer puts around a plain prompt.

        Long texts do not hold up the loop.
        """
        key = f"{special:d}{text}"
        ids = self._cache.get(key)
        if ids is None:
            if len(text) > _LONG_TEXT:
                ids = await asyncio.to_thread(self.encode_now, text, special=special)
            else:
                ids = self.encode_now(text, special=special)
            self._cache.put(key, ids)
        return ids

    def encode_now(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def piece(self, token_id: int) -> str:
        """The text of one token alone."""
        found = self._pieces.get(token_id)
        if found is None:
            found = self._pieces[token_id] = self.decode([token_id])
        return found

    def json_piece(self, token_id: int) -> bytes:
        """`piece` as a JSON string, with its quotes."""
        found = self._json_pieces.get(token_id)
        if found is None:
            found = self._json_pieces[token_id] = msgspec.json.encode(self.piece(token_id))
        return found

    def _choose_words(self) -> WordList:
        ids = range(min(self.vocab_size, _VOCABULARY_LOOKED_AT))
        texts = self._tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)
        spaced = [i for i in ids if re.fullmatch(r" [a-z]{2,}", texts[i])]
        plain = [i for i in spaced if not _DERIVED.search(texts[i])]
        spaced = plain if len(plain) >= _ENOUGH_WORDS else spaced
        opening = [i for i in ids if re.fullmatch(r"[A-Z][a-z]{2,}", texts[i])]
        words = self._stable(spaced, texts)
        openers = self._stable(opening, texts) or words
        stops = self._stable([i for i in ids if texts[i] in (".", ",")], texts)
        if not words or not stops:
            raise SimulatorConfigError("tokenizer: its vocabulary holds no whole English words; use another one")
        return WordList(openers, words, stops)

    def _stable(self, ids: Sequence[int], texts: Sequence[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch([texts[i] for i in ids], add_special_tokens=False)
        return [i for i, encoding in zip(ids, encodings, strict=True) if encoding.ids == [i]]
