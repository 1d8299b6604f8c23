"""An engine is asked within bounds, and left alone when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from router.core import Api, Endpoint, Health
from router.ports import UpstreamRefused
from router.tokenization.remote import RemoteLimits, RemoteTokenizer
from tests.support.tokenization import state

HI = {"messages": [{"role": "user", "content": "hi"}]}


class Engine:
    """Answers with as many tokens as it has been asked times, or as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer: Sequence[int] | Exception | None = [1, 2, 3]
        self.gate: asyncio.Event | None = None

    async def __call__(self, endpoint: Endpoint, payload: bytes) -> Sequence[int] | None:
        self.asked.append((endpoint.id, json.loads(payload)))
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def remote(engine: Engine, clock: Clock | None = None, **limits: Any) -> RemoteTokenizer:
    return RemoteTokenizer(engine, clock or Clock(), RemoteLimits(**limits))


async def ask(
    remote: RemoteTokenizer, fields: dict[str, Any] | None = None, api: Api = Api.CHAT, *names: str
) -> list[int] | None:
    tokens = await remote.tokens(api, fields or HI, "m", [state(name) for name in names or ("e1",)])
    return None if tokens is None else list(tokens.ids)


@pytest.mark.parametrize(
    ("api", "fields", "payload"),
    [
        (Api.CHAT, HI, {"model": "m", **HI}),
        (
            Api.CHAT,
            {**HI, "add_generation_prompt": False, "tools": [], "documents": [{"t": 1}], "reasoning_effort": "low"},
            {
                "model": "m",
                **HI,
                "add_generation_prompt": False,
                "tools": [],
                "chat_template_kwargs": {"documents": [{"t": 1}], "reasoning_effort": "low", "enable_thinking": True},
            },
        ),
        (
            Api.CHAT,
            {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "r"}]},
            {"model": "m", "messages": [{"role": "assistant", "content": "x", "reasoning": "r"}]},
        ),
        (Api.COMPLETIONS, {"prompt": "hi"}, {"model": "m", "prompt": "hi"}),
        (
            Api.COMPLETIONS,
            {"prompt": "hi", "add_special_tokens": False},
            {"model": "m", "prompt": "hi", "add_special_tokens": False},
        ),
        (
            Api.RESPONSES,
            {"input": "hi"},
            {"model": "m", **HI, "add_generation_prompt": True, "continue_final_message": False},
        ),
        (Api.MESSAGES, HI, {"model": "m", **HI}),
    ],
)
async def test_the_engine_is_asked_for_the_same_prompt(
    api: Api, fields: dict[str, Any], payload: dict[str, Any]
) -> None:
    engine = Engine()
    assert await ask(remote(engine), fields, api) == [1, 2, 3]
    assert engine.asked == [("e1", payload)]


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}),
        (Api.COMPLETIONS, {"prompt": []}),
        (Api.COMPLETIONS, {"prompt": "x", "suffix": "y"}),
        (Api.COMPLETIONS, {"prompt": "lone \ud83d"}),
        (Api.RESPONSES, {"input": "x", "previous_response_id": "r"}),
        (Api.MESSAGES, {"messages": [*HI["messages"], {"role": "system", "content": "late"}]}),
        (Api.MESSAGES, {**HI, "thinking": {"type": "disabled"}}),
    ],
)
async def test_what_the_engine_would_not_tell_or_would_fetch_is_not_asked(api: Api, fields: dict[str, Any]) -> None:
    engine = Engine()
    assert await ask(remote(engine), fields, api) is None
    assert engine.asked == []


async def test_of_a_batch_only_the_longest_prompt_is_asked_and_the_rest_counted_in_proportion() -> None:
    engine = Engine()
    engine.answer = [1, 2, 3, 4]
    tokens = await remote(engine).tokens(Api.COMPLETIONS, {"prompt": ["ab", "abcdefgh", "abcdef"]}, "m", [state()])
    assert engine.asked[0][1]["prompt"] == "abcdefgh"
    assert tokens is not None
    assert (list(tokens.ids), tokens.total) == ([1, 2, 3, 4], 8)


async def test_an_answer_is_remembered() -> None:
    engine = Engine()
    asking = remote(engine)
    assert await ask(asking) == await ask(asking) == [1, 2, 3]
    assert len(engine.asked) == 1


async def test_what_is_remembered_is_bounded() -> None:
    engine = Engine()
    engine.answer = list(range(100))
    asking = remote(engine, remembered_tokens=300)
    for text in ("a", "b", "c", "a"):
        await ask(asking, {"prompt": text}, Api.COMPLETIONS)
    assert len(engine.asked) == 4


async def test_truncation_is_done_here() -> None:
    assert await ask(remote(Engine()), {**HI, "truncate_prompt_tokens": 2}) == [2, 3]


async def test_candidates_take_turns_and_only_able_ones_are_asked() -> None:
    engine = Engine()
    asking = remote(engine)
    states = [state("a"), state("b"), state("down", health=Health.UNHEALTHY), state("going", health=Health.DRAINING)]
    for text in "wxyz":
        await asking.tokens(Api.COMPLETIONS, {"prompt": text}, "m", states)
    assert sorted(name for name, _ in engine.asked) == ["a", "a", "b", "b"]


async def test_an_engine_that_keeps_failing_is_left_alone_for_a_while() -> None:
    engine, clock = Engine(), Clock()
    engine.answer = UpstreamRefused()
    asking = remote(engine, clock, failures=2, rest_s=5.0)
    for _ in range(4):
        assert await ask(asking) is None
    assert len(engine.asked) == 2
    engine.answer = [7]
    clock.now += 5.0
    assert await ask(asking) == [7]


async def test_that_an_engine_does_not_tokenize_is_said_once_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    engine, clock = Engine(), Clock()
    asking = remote(engine, clock, failures=1, rest_s=5.0)

    async def asked(answer: Sequence[int] | Exception) -> int:
        engine.answer = answer
        clock.now += 5.0
        caplog.clear()
        await ask(asking, {"prompt": str(clock.now)}, Api.COMPLETIONS)
        return sum(record.levelname == "WARNING" for record in caplog.records)

    assert [await asked(UpstreamRefused()) for _ in range(3)] == [1, 0, 0]
    assert await asked(TimeoutError()) == 1
    assert await asked([1]) == 0
    assert await asked(TimeoutError()) == 1


async def test_a_refusal_is_no_failure() -> None:
    engine = Engine()
    engine.answer = None
    asking = remote(engine, failures=1)
    for _ in range(3):
        assert await ask(asking) is None
    assert len(engine.asked) == 3


async def test_an_engine_that_does_not_answer_in_time_has_failed() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    asking = remote(engine, timeout_s=0.01, failures=1)
    assert await ask(asking) is None
    assert await ask(asking) is None
    assert len(engine.asked) == 1


async def test_only_so_many_are_asked_for_at_once() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    asking = remote(engine, concurrent=1)
    first = asyncio.create_task(ask(asking))
    await asyncio.sleep(0)
    assert await ask(asking, {"prompt": "other"}, Api.COMPLETIONS) is None
    engine.gate.set()
    assert await first == [1, 2, 3]


@pytest.mark.parametrize("answer", [[-1], ["x"], [2**40], [1.5]])
async def test_an_answer_that_is_no_token_ids_is_none(answer: list[Any]) -> None:
    engine = Engine()
    engine.answer = answer
    assert await ask(remote(engine)) is None


async def test_without_candidates_nobody_is_asked() -> None:
    engine = Engine()
    assert await remote(engine).tokens(Api.CHAT, HI, "m", []) is None
    assert engine.asked == []
