from __future__ import annotations

import asyncio

import pytest

from loadtest.chaos.client import Answer, Outcome, ask, judge

EVENT = b'data: {"id":"c-1","choices":[{"delta":{"content":"One two, three"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"broke off"}}\n\n'
WHOLE = b'{"choices":[{"message":{}}],"usage":{"completion_tokens":4}}'


@pytest.mark.parametrize(
    ("body", "framed", "outcome"),
    [
        (EVENT + USAGE + DONE, True, Outcome.COMPLETE),
        (EVENT + ERROR, False, Outcome.CUT),
        (EVENT + ERROR, True, Outcome.CUT),
        (EVENT, False, Outcome.CUT),
        # An end in good form that is none.
        (EVENT, True, Outcome.HIDDEN),
        (EVENT + DONE, True, Outcome.HIDDEN),
        (EVENT + ERROR + DONE, True, Outcome.HIDDEN),
        (EVENT + b'data: {"choices":[{"finish_reason":"abort"}]}\n\n' + USAGE + DONE, True, Outcome.HIDDEN),
        (EVENT + USAGE.replace(b"4", b"3") + DONE, True, Outcome.HIDDEN),
        # A seam: a token twice, one lost, another answer's events.
        (EVENT.replace(b" two", b" two two") + USAGE + DONE, True, Outcome.HIDDEN),
        (EVENT.replace(b" two", b"") + USAGE + DONE, True, Outcome.HIDDEN),
        (EVENT + EVENT.replace(b"One two, three", b"").replace(b"c-1", b"c-2") + USAGE + DONE, True, Outcome.HIDDEN),
    ],
)
def test_a_stream_is_whole_or_visibly_cut_or_wrong(body: bytes, framed: bool, outcome: Outcome) -> None:
    assert judge(Answer(status=200, body=body, framed=framed), stream=True, tokens=4) is outcome


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(status=200, body=WHOLE, framed=True), Outcome.COMPLETE),
        (Answer(status=200, body=WHOLE[:20], error="IncompleteReadError"), Outcome.CUT),
        (Answer(status=200, body=b"{}", framed=True), Outcome.HIDDEN),
        (Answer(status=502, body=b"{}", framed=True), Outcome.LOST),
        (Answer(error="TimeoutError"), Outcome.LOST),
    ],
)
def test_a_whole_answer_likewise(answer: Answer, outcome: Outcome) -> None:
    assert judge(answer, stream=False, tokens=4) is outcome


def test_only_who_was_refused_or_told_of_the_end_is_turned_away() -> None:
    assert Answer(connected=False).turned_away
    assert Answer(error="IncompleteReadError").turned_away
    assert Answer(status=503, body=b'{"error":{"code":"shutting_down"}}', framed=True).turned_away
    assert not Answer(status=503, body=b'{"error":{"code":"no_endpoint"}}', framed=True).turned_away
    assert not Answer(error="TimeoutError").turned_away


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            Answer(status=200, body=b"{}", framed=True),
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            Answer(status=200, body=b"abcde", framed=True),
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            Answer(status=200, body=b"abc", error="IncompleteReadError"),
        ),
        (b"", Answer(error="IncompleteReadError")),
    ],
)
async def test_an_answer_is_read_as_far_as_it_comes(sent: bytes, answer: Answer) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await ask(server.sockets[0].getsockname()[1], b"", 10.0) == answer
