"""Generation: from a checked request to sequences on a rank, and their tokens as they come.

Used by every generating route.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.simulator.api.exchange import ApiError, Exchange, busy_error, dead_error, forever
from loadtest.simulator.api.params import Sampling, invalid
from loadtest.simulator.driver import EngineDied, RankDriver, Stream
from loadtest.simulator.engine import Phase, Request
from loadtest.simulator.node import Busy, SimEngine, fresh_id
from loadtest.simulator.sampler import Prose, answer_length, begun, json_value, make_rng
from loadtest.simulator.text import SimTokenizer
from loadtest.simulator.transfer import FatalParams, HandOff, IncompleteParams, parse, wants_remote_decode


class Plan(msgspec.Struct, frozen=True):
    """The answer that a sequence will give.

    `texts` is given when a token's text is not its vocabulary piece (cut by a stop string).
    """

    token_ids: Sequence[int]
    finish_reason: str
    stop_reason: str | int | None = None
    texts: Sequence[str] | None = None


class Choice:
    """One sequence of an answer: what it says and how much of it was sent."""

    __slots__ = ("finish_reason", "index", "opened", "plan", "prompt", "request", "sent")

    def __init__(self, index: int, prompt: Sequence[int], plan: Plan, request: Request) -> None:
        self.index = index
        self.prompt = prompt
        self.plan = plan
        self.request = request
        self.sent = 0
        self.opened = False
        self.finish_reason: str | None = None

    def take(self) -> range:
        """Positions of the tokens that came since the last call; sets `finish_reason` when they are the last."""
        new = range(self.sent, self.request.generated)
        self.sent = self.request.generated
        if self.request.phase is Phase.FINISHED:
            self.finish_reason = self.plan.finish_reason
        elif self.request.phase is Phase.ABORTED:
            self.finish_reason = "abort"
        return new

    @property
    def stop_reason(self) -> str | int | None:
        return self.plan.stop_reason if self.finish_reason == "stop" else None

    def text(self, tokenizer: SimTokenizer, positions: range) -> str:
        if self.plan.texts is not None:
            return "".join([self.plan.texts[i] for i in positions])
        return "".join([tokenizer.piece(self.plan.token_ids[i]) for i in positions])

    def json_text(self, tokenizer: SimTokenizer, positions: range) -> bytes:
        """`text` as a JSON string."""
        if self.plan.texts is not None:
            return msgspec.json.encode(self.text(tokenizer, positions))
        if len(positions) == 1:
            return tokenizer.json_piece(self.plan.token_ids[positions.start])
        pieces = [tokenizer.json_piece(self.plan.token_ids[i])[1:-1] for i in positions]
        return b'"' + b"".join(pieces) + b'"'

    def ids(self, positions: range) -> list[int]:
        return list(self.plan.token_ids[positions.start : positions.stop])


def resolve_model(engine: SimEngine, body: dict[str, Any]) -> tuple[str, tuple[int, str] | None]:
    """The served name and, for an adapter, its (id, name). Raises ApiError (404)."""
    name = body.get("model")
    if name is None:
        return engine.config.model, None
    if name in engine.models():
        return str(name), None
    if name in engine.loras:
        return str(name), engine.loras[name]
    known = ", ".join(engine.models())
    raise ApiError(404, f"The model `{name}` does not exist. Valid aliases: {known}.", "NotFoundError", "model")


def pick_rank(ex: Exchange) -> RankDriver:
    """The rank of ``X-data-parallel-rank``, else the engine's own choice. Raises ApiError (400)."""
    ranks = ex.engine.ranks
    given = ex.header(b"x-data-parallel-rank")
    if given is None:
        return ex.engine.pick_rank()
    try:
        rank = int(given)
    except ValueError:
        raise ApiError(400, f"data_parallel_rank must be an integer, got {given!r}.") from None
    if not 0 <= rank < len(ranks):
        raise ApiError(400, f"data_parallel_rank {rank} is out of range [0, {len(ranks)}).")
    return ranks[rank]


def check_prompt(engine: SimEngine, prompt: Sequence[int]) -> None:
    """Raises ApiError if a prompt is empty, too long or not of this vocabulary."""
    if not prompt:
        text = "Either prompt or prompt_embeds must be provided and non-empty."
        raise invalid(text, "prompt", show_value=False)
    limit = engine.max_model_len
    if len(prompt) >= limit:
        text = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise invalid(text, "input_tokens", limit + 1)
    worst = max(prompt)
    if worst >= engine.tokenizer.vocab_size or min(prompt) < 0:
        raise ApiError(
            400, f"Token id {worst if worst >= engine.tokenizer.vocab_size else min(prompt)} is out of vocabulary"
        )


def plan_text(engine: SimEngine, prompt: Sequence[int], sampling: Sampling, index: int) -> Plan:
    """Plain prose as long as the request wants it; a prompt that ends inside such an answer is gone on with."""
    seed, salt, words = engine.config.seed, f"{sampling.seed}:{index}", engine.tokenizer.words
    said = begun(seed, prompt, salt, words, engine.config.mean_output_tokens)
    rng = make_rng(seed, prompt[: len(prompt) - said], salt)
    prose = Prose(rng, words, engine.config.mean_output_tokens)
    natural = max(prose.natural_length - said, sampling.min_tokens, 1)
    room = engine.max_model_len - len(prompt)
    count, ends = answer_length(sampling.max_tokens, room, natural, exact=sampling.ignore_eos)
    ids = prose.write(said + count)[said:]
    return cut_at_stop(engine.tokenizer, Plan(ids, "stop" if ends else "length"), sampling)


def plan_given(
    engine: SimEngine, ids: Sequence[int], prompt: Sequence[int], sampling: Sampling, reason: str = "stop"
) -> Plan:
    """A text that is settled (JSON, a tool call), cut where the limit is."""
    room = engine.max_model_len - len(prompt)
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    return Plan(ids, reason) if len(ids) <= limit else Plan(ids[:limit], "length")


def wanted_json(body: dict[str, Any], rng: random.Random) -> str | None:
    """A JSON text that fits the request's ``response_format``; None if it wants plain text."""
    form = body.get("response_format")
    if not isinstance(form, dict) or form.get("type") not in ("json_object", "json_schema"):
        return None
    schema = (form.get("json_schema") or {}).get("schema") if form["type"] == "json_schema" else None
    return msgspec.json.encode(json_value(rng, schema)).decode()


def cut_at_stop(tokenizer: SimTokenizer, plan: Plan, sampling: Sampling) -> Plan:
    """End the plan at the first stop string or stop token behind `min_tokens`."""
    if sampling.stop_token_ids:
        for i, token in enumerate(plan.token_ids):
            if token in sampling.stop_token_ids and i >= sampling.min_tokens:
                texts = [*(tokenizer.piece(t) for t in plan.token_ids[:i]), ""]
                plan = Plan(plan.token_ids[: i + 1], "stop", token, texts)
                break
    if not sampling.stop:
        return plan
    pieces = list(plan.texts or [tokenizer.piece(t) for t in plan.token_ids])
    text = "".join(pieces)
    floor = sum(len(p) for p in pieces[: sampling.min_tokens])
    hits = [(at, stop) for stop in sampling.stop if (at := text.find(stop, floor)) >= 0]
    if not hits:
        return plan
    at, stop = min(hits)
    keep = at + len(stop) if sampling.keep_stop else at
    texts, position = [], 0
    for piece in pieces:
        if position >= at + len(stop):
            break
        texts.append(piece[: max(0, keep - position)])
        position += len(piece)
    return Plan(plan.token_ids[: len(texts)], "stop", stop, texts)


def read_hand_off(ex: Exchange, sampling: Sampling) -> tuple[HandOff | None, bool]:
    """(what to read from another engine, whether the request can never be answered).

    Raises ApiError when it kills the engine.
    """
    try:
        return parse(sampling.kv_transfer_params), False
    except FatalParams:
        if not ex.engine.config.fragile:
            return None, False
        ex.engine.die()
        raise dead_error() from None
    except IncompleteParams:
        return None, ex.engine.config.fragile


class Generation:
    """The sequences of one request on one rank. Use as ``async with``: leaving it aborts what still runs."""

    def __init__(self, ex: Exchange, response_id: str, sampling: Sampling, lora: tuple[int, str] | None) -> None:
        self.ex = ex
        self.engine = ex.engine
        self.id = response_id
        self.sampling = sampling
        self.created = int(time.time())
        self.choices: list[Choice] = []
        self._lora = lora
        self._driver = pick_rank(ex)
        self._stream = Stream()
        self._by_request: dict[Request, Choice] = {}
        self._hand_off, self._hangs = read_hand_off(ex, sampling)
        self._session = ex.header(b"x-session-id")

    def add(self, prompt: Sequence[int], plan: Plan) -> Choice:
        """One more sequence; it is queued by `submit`."""
        index = len(self.choices)
        hold = wants_remote_decode(self.sampling.kv_transfer_params) and plan.finish_reason == "length"
        request = Request(
            f"{self.id}-{index}-{fresh_id(8)}",
            prompt,
            plan.token_ids,
            lora=self._lora,
            salt=self.sampling.cache_salt,
            session_id=self._session,
            priority=self.sampling.priority,
            hold=hold,
            remote=self._hand_off is not None,
        )
        choice = Choice(index, prompt, plan, request)
        self.choices.append(choice)
        self._by_request[request] = choice
        return choice

    def admit(self) -> None:
        """Raises ApiError if the engine is dead or full."""
        try:
            self.engine.admit(len(self.choices))
        except EngineDied:
            raise dead_error() from None
        except Busy:
            raise busy_error() from None

    async def submit(self) -> None:
        """Queue all sequences. Never returns for a hand-off that the real engine would hang on."""
        if self._hangs:
            await forever()
        for choice in self.choices:
            reason = "stop" if choice.plan.finish_reason == "tool_calls" else choice.plan.finish_reason
            await self.engine.submit(self._driver, choice.request, self._stream, reason, self._hand_off)

    async def grown(self) -> list[Choice]:
        """The sequences with new tokens or an end. Raises EngineDied, TransferFailed."""
        return [self._by_request[request] for request in await self._stream.next()]

    async def finish(self) -> None:
        """Wait until every sequence has ended."""
        left = set(self.choices)
        while left:
            for choice in await self.grown():
                choice.take()
                if choice.finish_reason is not None:
                    left.discard(choice)

    def usage(self, choices: Sequence[Choice] | None = None) -> dict[str, int]:
        """Token counts so far; each distinct prompt counts once, as in vLLM."""
        chosen = self.choices if choices is None else choices
        prompt = sum(c.request.prompt_len for c in chosen[:: self.sampling.n])
        completion = sum(c.sent for c in chosen)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def cached_tokens(self) -> int:
        return sum(c.request.cached_tokens for c in self.choices[:: self.sampling.n])

    def created_cache_tokens(self) -> int:
        """Prompt tokens in full blocks that this request added to the cache."""
        size = self.engine.config.block_size
        return sum(
            c.request.prompt_len // size * size - c.request.cached_tokens
            for c in self.choices[:: self.sampling.n]
            if not c.request.external_tokens and c.request.prompt_len // size * size > c.request.cached_tokens
        )

    def hand_off_params(self) -> dict[str, Any] | None:
        return self.engine.hand_off_params(self._driver, self.choices[0].request)

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for choice in self.choices:
            self._driver.abort(choice.request)
