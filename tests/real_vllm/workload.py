"""Requests as clients send them, to compare predictions of an engine's cache with what the engine says. PURE.

Chats of several turns over shared system prompts, tools, content parts, completions by text and by token ids, batches,
LoRA adapters, cache salts, long and short; repeated, extended and interleaved, so that caches fill and evict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_TEXT = (
    "the block of a cache holds what was read before and an engine that has it need not read it again so a router "
    "sends one who asks to where his words lie; numbers 17, 2048 and 3.5e-4, names like Größe or naïve, signs -> != () "
    "and lines\nof several\n\nparagraphs ,then more"
)
_WORDS = _TEXT.split(" ")

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}


class Ask(NamedTuple):
    """One request. `answered` is told the text of the answer's first choice."""

    kind: str
    path: str
    body: dict[str, Any]
    answered: Callable[[str], None] = lambda _text: None


def workload(count: int, seed: int) -> Iterator[Ask]:
    """`count` requests. Lazy: a chat's next turn holds the answer to the one before."""
    rng = random.Random(seed)
    makers: list[Callable[[], Ask]] = []
    systems = [words(rng, size) for size in (40, 120, 400)]
    makers += [Chat(rng, rng.choice(systems), kind).ask for kind in Chat.KINDS for _ in range(3)]
    prompts = [words(rng, size) for size in (5, 60, 150, 500, 1100)]
    makers += [lambda: text_completion(rng, prompts), lambda: ids_completion(rng), lambda: batch(rng)]
    for number in range(count):
        if number % 40 == 39:
            yield Ask("long", COMPLETIONS, completion(words(rng, 1400)))
        else:
            yield rng.choice(makers)()


class Chat:
    """A conversation that goes on until it is long, then begins anew."""

    KINDS = ("chat", "tools", "parts", "lora-a", "lora-b", "salted")

    def __init__(self, rng: random.Random, system: str, kind: str) -> None:
        self._rng = rng
        self._kind = kind
        self._first: list[dict[str, Any]] = [{"role": "system", "content": system}]
        self._messages = list(self._first)
        self._salt = f"salt-{rng.randrange(3)}"

    def ask(self) -> Ask:
        if sum(len(str(message["content"])) for message in self._messages) > 6000:
            self._messages = list(self._first)
        said: Any = words(self._rng, self._rng.choice((3, 20, 90)))
        if self._kind == "parts":
            said = [{"type": "text", "text": said}, {"type": "text", "text": words(self._rng, 10)}]
        self._messages.append({"role": "user", "content": said})
        model = self._kind if self._kind.startswith("lora") else "tiny"
        body = {"model": model, "messages": list(self._messages), "max_tokens": self._rng.choice((1, 8, 40))}
        if self._kind == "tools":
            body["tools"] = [TOOL]
            body["tool_choice"] = "none"
        if self._kind == "salted":
            body["cache_salt"] = self._salt
        return Ask(self._kind, CHAT, {**body, "temperature": 0, "ignore_eos": True}, self._answered)

    def _answered(self, text: str) -> None:
        self._messages.append({"role": "assistant", "content": text})


def text_completion(rng: random.Random, prompts: list[str]) -> Ask:
    """A prompt seen before, its beginning, or the prompt gone on."""
    prompt = rng.choice(prompts)
    ending = rng.choice(("", words(rng, 30)))
    return Ask("text", COMPLETIONS, completion(prompt[: rng.choice((len(prompt), len(prompt) // 2))] + ending))


def ids_completion(rng: random.Random) -> Ask:
    """Token ids; every other one ends on a block's last token."""
    length = rng.choice((31, 32, 33, 64, 96, 500, 1024, 1025))
    return Ask("ids", COMPLETIONS, completion(numbers(rng.randrange(4), length)))


def batch(rng: random.Random) -> Ask:
    """The last prompt is the longest: the router tells what it matched of the longest, an engine of the last."""
    same = random.Random(rng.randrange(6))
    return Ask("batch", COMPLETIONS, completion([words(same, size) for size in (20, 45, 200)]))


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


def numbers(seed: int, count: int) -> list[int]:
    """Token ids, the same for the same seed."""
    rng = random.Random(seed)
    return [rng.randrange(4, 2048) for _ in range(count)]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))
