"""Transcript on what a real vLLM sent."""

from __future__ import annotations

import json

import pytest

from router.core import Api
from router.wire.continuable import Terms
from router.wire.continued import continued_body
from router.wire.transcript import Transcript
from tests.support.recordings import recording


def of(name: str, *, shows_ids: bool = False) -> tuple[Transcript, bytes]:
    api = Api.CHAT if name.startswith("chat") else Api.COMPLETIONS
    terms = Terms(api=api, carried={}, max_tokens=50, shows_ids=shows_ids)
    return Transcript(terms), recording(name).body.encode()


def test_ids_that_only_the_router_asked_for_leave_no_trace() -> None:
    transcript, asked = of("completion_stream_token_ids")
    shown = transcript.feed(asked) + transcript.end()
    _, plain = of("completion_stream")
    # The same answer twice, recorded with and without ids; only its length differs.
    events = [dict(json.loads(line[6:])) for line in shown.decode().splitlines() if line.startswith("data: {")]
    others = [dict(json.loads(line[6:])) for line in plain.decode().splitlines() if line.startswith("data: {")]
    for event in (*events, *others):
        event.pop("id")
    assert events[:3] == others[:3]
    assert events[-1] == others[-1]
    assert transcript.finished


def test_ids_that_the_client_asked_for_stay() -> None:
    transcript, asked = of("completion_stream_token_ids", shows_ids=True)
    assert transcript.feed(asked) + transcript.end() == asked


def test_a_recorded_stream_cut_after_its_second_event_is_gone_on_with_from_its_tokens() -> None:
    transcript, asked = of("completion_stream_token_ids")
    transcript.feed(b"\n\n".join(asked.split(b"\n\n")[:2]) + b"\n\n" + b'data: {"id":"cm')
    body = json.loads(continued_body(transcript, None) or b"{}")
    assert body["prompt"] == [39, 373, 274, 11, 334, 1374, 0, 0, 0]
    assert body["max_tokens"] == 48


@pytest.mark.parametrize(
    "name", ["completion_stream", "chat_stream", "chat_stream_token_ids_logprobs", "chat_stream_n2"]
)
def test_recorded_streams_without_ids_or_with_more_than_them_pass_and_are_left_alone(name: str) -> None:
    transcript, asked = of(name, shows_ids=True)
    assert transcript.feed(asked) + transcript.end() == asked
    assert not transcript.resumable
