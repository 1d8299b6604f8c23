"""The shapes of load: what one user asks, and what it asks next. PURE.

A shape is a generator: it yields an `Ask` and is sent what became of it, the assistant's answer or None when there was
none. Everything in it follows from the profile's seed and the user's number, so two runs ask the same things.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from itertools import count
from typing import NamedTuple

from loadtest.profile import LoadProfile, MultiTurn, Range, Seconds, SharedPrefix, Trace
from loadtest.text import TOKENS_PER_WORD, words
from loadtest.traces import TraceRequest

Message = dict[str, str]


class Ask(NamedTuple):
    """One chat completion to be asked."""

    name: str
    """What it is counted under; one of a few."""
    messages: tuple[Message, ...]
    max_tokens: int
    wait_s: float = 0.0
    """Time to wait before asking, in seconds."""
    due_s: float | None = None
    """When to ask instead, in seconds since the load began."""


Script = Generator[Ask, str | None, None]


def shared_prefix(load: SharedPrefix, seed: int, user: int) -> Script:
    """Questions without end; which group asks is drawn anew each time."""
    rng = random.Random(f"{seed}/{user}/shared-prefix")
    for number in count():
        group = rng.randrange(load.groups)
        question = words(f"{seed}/{user}/{number}/question", _whole(rng, load.question_words))
        yield Ask(
            name="shared-prefix",
            messages=(_system(seed, group, load.system_words), {"role": "user", "content": question}),
            max_tokens=_whole(rng, load.answer_tokens),
            wait_s=_seconds(rng, load.think_s),
        )


def multi_turn(load: MultiTurn, seed: int, user: int) -> Script:
    """Conversation after conversation. One whose turn got no answer is given up: there is nothing to go on from."""
    rng = random.Random(f"{seed}/{user}/multi-turn")
    conversations = count() if load.conversations is None else range(load.conversations)
    for number in conversations:
        messages = [_system(seed, rng.randrange(load.groups), load.system_words)]
        turns = _whole(rng, load.turns)
        # Drawn ahead, so that a conversation that is given up changes nothing in those after it.
        plan = [
            (_whole(rng, load.question_words), _whole(rng, load.answer_tokens), _seconds(rng, load.think_s))
            for _ in range(turns)
        ]
        for turn, (length, answer_tokens, think_s) in enumerate(plan):
            question = words(f"{seed}/{user}/{number}/{turn}", length)
            messages.append({"role": "user", "content": question})
            answer = yield Ask("multi-turn", tuple(messages), answer_tokens, wait_s=think_s)
            if answer is None:
                break
            messages.append({"role": "assistant", "content": answer})


def traced(load: Trace, requests: Iterator[TraceRequest]) -> Script:
    """The requests of `requests`, each when it is due. Users that share the iterator share the trace between them."""
    for request in requests:
        yield Ask(
            name="trace",
            messages=({"role": "user", "content": trace_prompt(load, request)},),
            max_tokens=max(1, round(request.output_length * load.scale)),
            due_s=request.timestamp / 1000 / load.speedup,
        )


def trace_prompt(load: Trace, request: TraceRequest) -> str:
    """Equal block ids give equal text, so prompts share exactly the prefixes that the trace says."""
    words_per_block = max(1, round(load.block_tokens * load.scale / TOKENS_PER_WORD))
    wanted = max(1, round(request.input_length * load.scale / TOKENS_PER_WORD))
    blocks = [words(f"block/{block}", words_per_block) for block in request.hash_ids()]
    prompt = " ".join(blocks).split(" ") if blocks else words(f"at/{request.timestamp}", wanted).split(" ")
    return " ".join(prompt[:wanted])


def script(profile: LoadProfile, user: int, requests: Iterator[TraceRequest]) -> Script:
    """What user number `user` of this load asks; `requests` is used by the trace shape alone."""
    match profile.shape:
        case "shared-prefix":
            return shared_prefix(profile.shared_prefix, profile.seed, user)
        case "multi-turn":
            return multi_turn(profile.multi_turn, profile.seed, user)
        case "trace":
            return traced(profile.trace, requests)


def _system(seed: int, group: int, length: int) -> Message:
    return {"role": "system", "content": words(f"{seed}/system/{group}", length)}


def _whole(rng: random.Random, bounds: Range) -> int:
    return rng.randint(bounds.least, bounds.most)


def _seconds(rng: random.Random, bounds: Seconds) -> float:
    return rng.uniform(bounds.least, bounds.most)
