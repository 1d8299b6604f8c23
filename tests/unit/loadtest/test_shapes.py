"""The shapes ask the same things for the same seed, share what they say they share, and go on from real answers."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TypedDict, Unpack

import pytest

from loadtest.profile import LoadProfile, MultiTurn, Range, Seconds, Shape, SharedPrefix, Trace
from loadtest.shapes import Ask, Script, script, trace_prompt
from loadtest.traces import TraceRequest, generate


class Parts(TypedDict, total=False):
    shared_prefix: SharedPrefix
    multi_turn: MultiTurn
    trace: Trace


def profile(shape: Shape, **parts: Unpack[Parts]) -> LoadProfile:
    return LoadProfile(shape=shape, users=4, spawn_rate=4, run_time_s=5, seed=3, **parts)


def start(of: LoadProfile, user: int = 0, requests: list[TraceRequest] | None = None) -> Script:
    return script(of, user, iter(requests or []))


def asks(running: Script, answer: str | None = "so it is") -> list[Ask]:
    """All that a script asks when every answer is the same."""
    asked = [next(running)]
    try:
        while True:
            asked.append(running.send(answer))
    except StopIteration:
        return asked


def test_a_conversation_goes_on_from_what_was_really_answered() -> None:
    running = start(profile("multi-turn", multi_turn=MultiTurn(conversations=1, turns=Range(3, 3))))
    first = next(running)
    second = running.send("an answer")
    third = running.send("another")
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert second.messages[:2] == first.messages
    assert second.messages[2] == {"role": "assistant", "content": "an answer"}
    assert third.messages[:4] == second.messages
    assert third.messages[4]["content"] == "another"
    with pytest.raises(StopIteration):
        running.send("the last")


def test_a_turn_without_an_answer_ends_its_conversation_and_changes_nothing_in_the_next() -> None:
    load = profile("multi-turn", multi_turn=MultiTurn(conversations=2, turns=Range(2, 5)))
    whole, broken = asks(start(load)), asks(start(load), None)
    assert len(broken) == 2
    assert broken[0] == whole[0]
    opening = [ask for ask in whole if len(ask.messages) == 2]
    assert broken[1] == opening[1]


@pytest.mark.parametrize("shape", ["multi-turn", "shared-prefix"])
def test_the_same_seed_and_user_ask_the_same_and_others_ask_something_else(shape: Shape) -> None:
    load = profile(shape, multi_turn=MultiTurn(conversations=2))
    one, again, other = (list(islice(start(load, user), 1)) for user in (0, 0, 1))
    assert one == again
    assert one != other


def test_questions_of_one_group_share_their_system_prompt_and_nothing_else() -> None:
    load = profile("shared-prefix", shared_prefix=SharedPrefix(groups=3, system_words=40))
    running = start(load)
    asked = [next(running), *(running.send("fine") for _ in range(59))]
    assert len({ask.messages[0]["content"] for ask in asked}) == 3
    assert len({ask.messages[1]["content"] for ask in asked}) == 60
    assert all(len(ask.messages[0]["content"].split()) == 40 for ask in asked)


def test_lengths_and_pauses_stay_in_their_ranges() -> None:
    load = profile(
        "multi-turn",
        multi_turn=MultiTurn(
            conversations=5,
            turns=Range(2, 4),
            question_words=Range(7, 9),
            answer_tokens=Range(3, 4),
            think_s=Seconds(0.1, 0.2),
        ),
    )
    for ask in asks(start(load)):
        assert 7 <= len(ask.messages[-1]["content"].split()) <= 9
        assert 3 <= ask.max_tokens <= 4
        assert 0.1 <= ask.wait_s <= 0.2


def test_a_traces_requests_are_asked_at_their_times_and_shared_between_users() -> None:
    requests = generate(1, sessions=5)
    load = profile("trace", trace=Trace(speedup=2.0, scale=0.1))
    left = iter(requests)
    first, second = script(load, 0, left), script(load, 1, left)
    due = [next(first).due_s, next(second).due_s, first.send("fine").due_s]
    assert due == [request.timestamp / 2000 for request in requests[:3]]


def test_trace_prompts_share_exactly_the_blocks_that_the_trace_says() -> None:
    load = Trace(block_tokens=140, scale=1.0)
    common = TraceRequest(timestamp=0, input_length=420, output_length=1, runs=((0, 2), (5, 1)))
    other = TraceRequest(timestamp=0, input_length=420, output_length=1, runs=((0, 2), (9, 1)))
    one, two = (trace_prompt(load, request).split() for request in (common, other))
    assert len(one) == len(two) == 300
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=True)))
    assert 200 <= shared < 210


def test_a_trace_request_without_blocks_still_has_its_length() -> None:
    request = TraceRequest(timestamp=7, input_length=140, output_length=1)
    assert len(trace_prompt(Trace(), request).split()) == 100
