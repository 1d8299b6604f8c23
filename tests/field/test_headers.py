"""Header fields and framing, in both directions."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.field import CHAT, chat, field, streamed
from tests.support.rawclient import RawAnswer, connected, dumped, post
from tests.support.stub_engine import JSON, Call, completed, serve

BODY = dumped(chat("in pieces " * 50))


async def test_hdr_03_a_chunked_upload_reaches_the_engine_whole_and_framed_once() -> None:
    async with field(serve) as at, connected(at.router) as client:
        await client.send(post(CHAT, b"", "transfer-encoding: chunked", framing=False))
        step = len(BODY) // 5 + 1
        for start in range(0, len(BODY), step):
            piece = BODY[start : start + step]
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.01)
        await client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        call = at.engine.calls[0]
        assert hashlib.sha256(call.body).digest() == hashlib.sha256(BODY).digest()
        assert call.values("content-length") == [str(len(BODY))]
        assert call.values("transfer-encoding") == []


async def test_hdr_04_hop_by_hop_fields_cross_in_neither_direction() -> None:
    async def script(call: Call) -> None:
        back = ((b"connection", b"x-back"), (b"x-back", b"1"), (b"proxy-authenticate", b"Basic"), (b"x-kept", b"yes"))
        await call.answer(completed(), fields=(*JSON, *back, (b"keep-alive", b"timeout=5"), (b"trailer", b"x")))

    async with field(script) as at, connected(at.router) as client:
        answer = await client.ask(
            post(
                CHAT,
                BODY,
                "connection: close, x-secret-hop",
                "x-secret-hop: 1",
                "te: trailers",
                "trailer: x",
                "proxy-authorization: Basic eA==",
                "proxy-connection: keep-alive",
                "keep-alive: 5",
                "upgrade: h2c",
                "x-kept: yes",
            )
        )
        sent = {name.decode() for name, _ in at.engine.calls[0].request.headers}
        gone = {"x-secret-hop", "te", "trailer", "proxy-authorization", "proxy-connection", "keep-alive", "upgrade"}
        assert sent & (gone | {"connection"}) == set()
        assert "x-kept" in sent
        returned = {name for name, _ in answer.headers}
        assert returned & {"x-back", "proxy-authenticate", "keep-alive", "trailer"} == set()
        assert answer.values("x-kept") == ["yes"]
        assert "x-back" not in ",".join(answer.values("connection"))


async def test_hdr_09_a_head_beyond_the_limit_is_refused_and_the_router_lives() -> None:
    async with field(serve) as at:
        for size in (80_000, 300_000, 2_000_000):
            async with connected(at.router) as client:
                answer = await client.ask(post(CHAT, BODY, "x-large: " + "a" * size))
                assert answer.status == 431
                assert b"max_header_bytes" in answer.body
        assert (await at.chat()).status_code == 200
        assert at.calls == 1


async def test_hdr_09_a_head_that_never_ends_is_refused_before_its_end() -> None:
    async with field(serve) as at, connected(at.router) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\n")
        for number in range(80):
            await client.send(b"x-%d: %b\r\n" % (number, b"v" * 1000))
        assert (await client.answer()).status == 431
        assert await client.closed() == b""


async def test_hdr_09_three_hundred_fields_pass() -> None:
    async with field(serve) as at, connected(at.router) as client:
        answer = await client.ask(post(CHAT, BODY, *(f"x-{number}: {number}" for number in range(300))))
        assert answer.status == 200
        assert at.engine.calls[0].values("x-299") == ["299"]


@pytest.mark.parametrize("path", [CHAT + "/", "/v1/models/", "/health/"])
async def test_hdr_10_a_trailing_slash_is_never_redirected_away(path: str) -> None:
    async with field(serve) as at, connected(at.router) as client:
        request = post(path, BODY) if path.startswith(CHAT) else f"GET {path} HTTP/1.1\r\nhost: r\r\n\r\n".encode()
        answer = await client.ask(request)
        for location in answer.values("location"):
            assert urlsplit(location).netloc == ""
        assert answer.status in (200, 404)
        if path.startswith(CHAT):
            assert answer.status == 200
            assert at.engine.calls[0].path == CHAT
            assert at.engine.calls[0].body == BODY


@pytest.mark.parametrize("keys", [(), ("client-key",)], ids=["let-in", "refused"])
async def test_hdr_12_expect_100_continue_is_answered_and_not_forwarded(keys: tuple[str, ...]) -> None:
    async with field(serve, server__api_keys=list(keys)) as at, connected(at.router) as client:
        head = post(CHAT, b"", f"content-length: {len(BODY)}", "expect: 100-continue", framing=False)
        await client.send(head)
        async with asyncio.timeout(5):
            # The client sends no byte of its body before it has heard of the router.
            status, _ = await client.head()
        if keys:
            assert status == 401
            return
        assert status == 100
        assert (await client.ask(BODY)).status == 200
        assert at.engine.calls[0].values("expect") == []


async def refuses(call: Call) -> None:
    await call.answer({"error": {"message": "no", "code": 400}}, 400)


async def fails(call: Call) -> None:
    await call.answer({"error": {"message": "no", "code": 500}}, 500)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(CHAT, BODY), 200),
        (post(CHAT, dumped(chat(model="nobody"))), 404),
        (post(CHAT, b"{"), 400),
        (post("/nowhere", BODY), 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\nhost: r\r\n\r\n", 405),
        (b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n", 200),
        (b"GET /v1/models/nobody HTTP/1.1\r\nhost: r\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nhost: r\r\n\r\n", 200),
    ],
)
async def test_hdr_14_every_answers_length_is_its_bodys(request_: bytes, status: int) -> None:
    async with field(serve) as at, connected(at.router) as client:
        assert_exact(await client.ask(request_), status)
        # The next answer on the connection begins where this one ended.
        assert_exact(await client.ask(post(CHAT, BODY)), 200)


@pytest.mark.parametrize(("script", "status"), [(refuses, 400), (fails, 500)])
async def test_hdr_14_an_engines_errors_keep_their_length(script: Any, status: int) -> None:
    async with field(script) as at, connected(at.router) as client:
        assert_exact(await client.ask(post(CHAT, BODY)), status)
        assert_exact(await client.ask(post(CHAT, dumped(streamed()))), status)


async def test_hdr_14_a_body_that_the_router_edits_has_a_framing_of_its_own() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'

    async def script(call: Call) -> None:
        text = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
        body = text + usage + b"data: [DONE]\n\n"
        await call.head(200, ((b"content-type", b"text/event-stream"),), length=len(body))
        await call.peer.send(body)

    async with field(script, usage__inject_stream_usage=True) as at, connected(at.router) as client:
        answer = await client.ask(post(CHAT, dumped(streamed())))
        assert answer.complete
        assert answer.values("content-length") == []
        assert usage not in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")


def assert_exact(answer: RawAnswer, status: int) -> None:
    assert answer.status == status
    assert answer.complete
    assert answer.values("content-length") == [str(len(answer.body))]


async def test_hdr_15_repeated_fields_stay_apart_and_in_order() -> None:
    async def script(call: Call) -> None:
        twice = ((b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-own", b"one"), (b"x-own", b"two"))
        await call.answer(completed(), fields=(*JSON, *twice))

    async with field(script) as at, connected(at.router) as client:
        answer = await client.ask(post(CHAT, BODY, "x-forwarded-for: 1.1.1.1", "x-forwarded-for: 2.2.2.2"))
        assert at.engine.calls[0].values("x-forwarded-for") == ["1.1.1.1", "2.2.2.2"]
        assert answer.values("set-cookie") == ["a=1", "b=2"]
        assert answer.values("x-own") == ["one", "two"]


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\ncontent-length: 500\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 5, 500\r\n",
        b"content-length: -5\r\n",
        b"transfer-encoding: gzip\r\n",
    ],
)
async def test_hdr_16_contradicting_lengths_of_an_engine_desynchronise_nobody(framing: bytes) -> None:
    async def script(call: Call) -> None:
        if call.number % 2:
            await serve(call)
        else:
            await call.peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + framing + b"\r\n12345")
            await call.peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
            await call.hang()

    async with field(script, retries__max_attempts=1) as at, connected(at.router) as client:
        first = await client.ask(post(CHAT, BODY))
        assert first.status == 502
        second = await client.ask(post(CHAT, BODY))
        assert second.status == 200
        assert b"hello" in second.body
        assert b"forged" not in first.body + second.body
