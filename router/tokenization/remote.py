"""Asking an engine's ``/tokenize`` where there is no local tokenizer: bounded in time, in number and in memory.

An engine that fails is left alone for a while, and what it answered is remembered by the request it answered.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from xxhash import xxh3_128_digest

from router.core import Api, Endpoint, EndpointState, Health
from router.ports import Clock, UpstreamError
from router.tokenization.conversation import holds_media
from router.tokenization.errors import NotRenderable
from router.tokenization.exact import chat_form
from router.tokenization.local import PromptTokens, truncate

log = logging.getLogger(__name__)

_KWARGS = ("documents", "reasoning_effort")
_PASSED = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "tools", "chat_template")


class RemoteTokenize(Protocol):
    """One call of an engine's ``POST /tokenize``."""

    async def __call__(self, endpoint: Endpoint, payload: bytes) -> Sequence[int] | None:
        """The answer's ``tokens``; None when the engine refused this prompt (400, 413, 422).

        Raises `UpstreamError` when it could not be asked or cannot do it: no connection, no answer in time, 404, 5xx,
        an answer that is not one.
        """
        ...


class RemoteLimits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float = 1.0
    """For one call; a request waits no longer for its tokens."""
    concurrent: int = 32
    """Calls under way; one more prompt is estimated."""
    failures: int = 3
    """In a row, after which an endpoint is not asked for `rest_s`."""
    rest_s: float = 10.0
    remembered_tokens: int = 4_000_000
    """Tokens of remembered answers, 4 bytes each."""


class RemoteTokenizer:
    """Asks any healthy candidate, in turn."""

    def __init__(self, ask: RemoteTokenize, clock: Clock, limits: RemoteLimits | None = None) -> None:
        self._ask = ask
        self._clock = clock
        self._limits = limits or RemoteLimits()
        self._answers: OrderedDict[bytes, array[int]] = OrderedDict()
        self._remembered = 0
        self._failures: dict[str, int] = {}
        self._resting_until: dict[str, float] = {}
        self._told: dict[str, str] = {}
        """Endpoint id -> why it was last said not to tokenize; gone once it does."""
        self._turn = 0
        self._under_way = 0

    async def tokens(
        self,
        api: Api,
        fields: Mapping[str, Any],
        model: str | None,
        candidates: Sequence[EndpointState],
        max_model_len: int | None = None,
    ) -> PromptTokens | None:
        """None when no engine can be asked, none answered, or it refused."""
        try:
            payload, share = _payload(api, fields, model)
            ids = await self._answer(payload, candidates)
            if ids is None:
                return None
            whole = truncate(ids, fields, max_model_len)
        except NotRenderable:
            return None
        return PromptTokens(whole, max(round(len(whole) / share), len(whole)))

    async def _answer(self, payload: bytes, candidates: Sequence[EndpointState]) -> array[int] | None:
        key = xxh3_128_digest(payload)
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            return known
        endpoint = self._choose(candidates)
        if endpoint is None or self._under_way >= self._limits.concurrent:
            return None
        self._under_way += 1
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answer = await self._ask(endpoint, payload)
        except (UpstreamError, TimeoutError) as error:
            self._failed(endpoint, error)
            return None
        finally:
            self._under_way -= 1
        self._failures.pop(endpoint.id, None)
        if self._told.pop(endpoint.id, None) is not None:
            log.info("%s tokenizes again", endpoint.id)
        return None if answer is None else self._remember(key, answer)

    def _choose(self, candidates: Sequence[EndpointState]) -> Endpoint | None:
        now = self._clock()
        able = [
            state.endpoint
            for state in candidates
            if state.health in (Health.HEALTHY, Health.UNKNOWN)
            and self._resting_until.get(state.endpoint.id, now) <= now
        ]
        self._turn += 1
        return able[self._turn % len(able)] if able else None

    def _failed(self, endpoint: Endpoint, error: Exception) -> None:
        count = self._failures.get(endpoint.id, 0) + 1
        if count >= self._limits.failures:
            self._tell(endpoint.id, type(error).__name__)
            self._resting_until[endpoint.id] = self._clock() + self._limits.rest_s
            count = 0
        # Endpoints come and go; what is kept of them must not grow with all that ever were.
        if len(self._failures) + len(self._resting_until) > 4096:
            self._failures.clear()
            self._resting_until.clear()
            self._told.clear()
        self._failures[endpoint.id] = count

    def _tell(self, endpoint_id: str, why: str) -> None:
        """Once while it lasts, however often it is tried again."""
        if self._told.get(endpoint_id) != why:
            self._told[endpoint_id] = why
            log.warning("%s does not tokenize (%s): asked again every %g s", endpoint_id, why, self._limits.rest_s)

    def _remember(self, key: bytes, answer: Sequence[int]) -> array[int] | None:
        try:
            ids = array("I", answer)
        except (OverflowError, TypeError, ValueError):
            return None
        if len(ids) <= self._limits.remembered_tokens and key not in self._answers:
            self._answers[key] = ids
            self._remembered += len(ids) + 32
            while self._remembered > self._limits.remembered_tokens and self._answers:
                _, dropped = self._answers.popitem(last=False)
                self._remembered -= len(dropped) + 32
        return ids


def _payload(api: Api, fields: Mapping[str, Any], model: str | None) -> tuple[bytes, float]:
    """The body to ask with, and which part of all prompts' text it covers (1.0 but for a batch)."""
    head = {} if model is None else {"model": model}
    if api is Api.COMPLETIONS:
        prompt, share = _longest_text(fields)
        return _encode({**head, "prompt": prompt, **_present(fields, ("add_special_tokens",))}), share
    return _encode({**head, **_chat_payload(api, fields)}), 1.0


def _chat_payload(api: Api, fields: Mapping[str, Any]) -> dict[str, Any]:
    # What only the template knows (order of system turns, what stands for no thinking) must not matter here.
    forms = [
        chat_form(api, fields, system_first=first, thinking_off_effort=effort)
        for first, effort in ((False, "none"), (True, "low"))
    ]
    form = forms[0]
    if form is None or form != forms[1]:
        raise NotRenderable("the chat template decides how this request is put as a chat")
    messages = form.get("messages")
    if type(messages) is not list:
        raise NotRenderable("messages is not a list")
    if holds_media(messages):
        # The engine would fetch them, once more and out of turn.
        raise NotRenderable("the prompt holds media")
    kwargs = form.get("chat_template_kwargs")
    kwargs = dict(kwargs) if type(kwargs) is dict else {}
    # /tokenize knows fewer fields than a chat request; the template gets the others all the same.
    given = {key: form[key] for key in _KWARGS if form.get(key) is not None}
    if "reasoning_effort" in given and "enable_thinking" not in kwargs:
        given["enable_thinking"] = given["reasoning_effort"] != "none"
    payload = {"messages": [_renamed(message) for message in messages], **_present(form, _PASSED)}
    if kwargs or given:
        payload["chat_template_kwargs"] = kwargs | given
    return payload


def _renamed(message: Any) -> Any:
    """A chat request may say ``reasoning_content``; /tokenize takes only the newer name."""
    if type(message) is not dict or message.get("reasoning_content") is None:
        return message
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return rest if rest.get("reasoning") is not None else rest | {"reasoning": message["reasoning_content"]}


def _longest_text(fields: Mapping[str, Any]) -> tuple[str, float]:
    prompt = fields.get("prompt")
    if fields.get("suffix") is not None or fields.get("prompt_embeds") is not None:
        raise NotRenderable("the engine composes this prompt")
    if type(prompt) is str:
        return prompt, 1.0
    if type(prompt) is list and prompt and all(type(one) is str for one in prompt):
        longest = max(prompt, key=len)
        return longest, max(len(longest), 1) / max(sum(map(len, prompt)), 1)
    raise NotRenderable("the prompt is neither text nor token ids")


def _present(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _encode(payload: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise NotRenderable("the prompt cannot be sent on") from None
