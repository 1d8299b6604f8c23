"""What is sent for a request of a trace, and what counts of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadtest.replay.workload import Request
from loadtest.replay_over_http.__main__ import figures
from loadtest.replay_over_http.play import Played, message, play, prompt_tokens
from tests.support.replay import SIZE, ask, workload

WHOLE = (
    b'data: {"choices":[{"text":"a"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":33,"prompt_tokens_details":{"cached_tokens": 16}}}\n\n'
    b"data: [DONE]\n\n"
)


@asynccontextmanager
async def answering(status: str, body: bytes) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def sent(request: Request) -> dict[str, object]:
    head, _, body = message(request, SIZE, "m").partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    found: dict[str, object] = json.loads(body)
    return found


def test_the_same_block_is_the_same_tokens_and_the_rest_is_nobody_elses() -> None:
    one, two = prompt_tokens(ask(0, 0.0, [7, 8], tail=3), SIZE), prompt_tokens(ask(1, 0.0, [7, 9], tail=3), SIZE)
    assert len(one) == len(two) == 2 * SIZE + 3
    assert one[:SIZE] == two[:SIZE]
    assert one[SIZE : 2 * SIZE] != two[SIZE : 2 * SIZE]
    assert one[2 * SIZE :] != two[2 * SIZE :]


def test_the_answer_has_the_length_that_the_trace_has() -> None:
    body = sent(ask(0, 0.0, [7], tail=1, output=12))
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (12, True, True)


async def test_requests_are_measured_one_by_one() -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, failed: int) -> None:
        told.append((done, failed))

    load = workload(ask(0, 0.0, [1, 2]), ask(1, 0.01, [1, 2]))
    async with answering("200 OK", WHOLE) as port:
        played = await play(load, port, "m", progress)
    assert [(each.number, each.cached, each.failed) for each in played] == [(0, 16, False), (1, 16, False)]
    assert all(each.ttft_s is not None and each.ttft_s <= each.e2e_s for each in played)
    assert told[-1] == (2, 0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("503 Busy", b'{"error":{}}'),
        ("200 OK", b'data: {"choices":[{"text":"a"}]}\n\n'),
        ("200 OK", b'data: {"choices":[{"text":"a"}]}\n\ndata: {"error":{}}\n\ndata: [DONE]\n\n'),
        ("200 OK", b"data: [DONE]\n\n"),
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(status: str, body: bytes) -> None:
    async with answering(status, body) as port:
        (played,) = await play(workload(ask(0, 0.0, [1])), port, "m", lambda _done, _failed: None)
    assert played.failed


async def test_a_router_that_is_not_there_is_a_failure_too() -> None:
    async with answering("200 OK", WHOLE) as port:
        pass
    (played,) = await play(workload(ask(0, 0.0, [1])), port, "m", lambda _done, _failed: None)
    assert played.failed


def seen(number: int, at: float, *, ttft_s: float = 0.2, failed: bool = False) -> Played:
    return Played(number=number, at=at, late_s=0.001, prompt=100, cached=50, ttft_s=ttft_s, e2e_s=1.0, failed=failed)


def test_the_first_seconds_and_failures_do_not_count_but_failures_are_told() -> None:
    found = figures([seen(0, 1.0, ttft_s=9.0), seen(1, 6.0), seen(2, 7.0, ttft_s=0.4), seen(3, 8.0, failed=True)], 5.0)
    assert (found.requests, found.failed, found.hit_rate) == (2, 1, 0.5)
    assert found.ttft_s == pytest.approx(0.3)


def test_nothing_that_counts_is_no_figure() -> None:
    with pytest.raises(ValueError, match="give --seconds more"):
        figures([seen(0, 1.0)], 5.0)
