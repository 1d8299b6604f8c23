"""What a client may hold at most: bytes of a head, time for a head, a body and its answer, connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from router.api.http_protocol import REFUSED_WITH, BoundedHttp, ClientLimits, Connections
from tests.support.transport import FakeTransport

LIMITS = ClientLimits(header_bytes=1000, head_s=10, body_idle_s=5, body_s=20, send_s=30, connections=3)
HEAD = b"POST / HTTP/1.1\r\nhost: r\r\n"
BODY = HEAD + b"content-length: 10\r\n\r\n"


class Served:
    """An application that reads the whole body, then answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.gone = False
        self.refused_with: int | None = None
        self.answer = b"ok"

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                self.refused_with = scope.get(REFUSED_WITH)
                return
            if not message["more_body"]:
                break
        await self.go.wait()
        length = str(len(self.answer)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": self.answer})


class Client:
    """One connection, and the clock of what looks after it."""

    def __init__(self, app: Any | None = None, connections: Connections | None = None) -> None:
        self.app = app if app is not None else Served()
        self.connections = connections or Connections(LIMITS)
        self.began = self.connections.now
        config = Config(self.app, log_config=None, lifespan="off", ws="none")
        config.load()
        self.transport = FakeTransport()
        protocol = self.connections(config=config, server_state=ServerState(), app_state={})
        assert isinstance(protocol, BoundedHttp)
        self.protocol = protocol
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def at(self, seconds: float) -> None:
        """A look, so many seconds after the beginning."""
        self.connections.look(self.began + seconds)

    @property
    def status(self) -> int:
        return int(bytes(self.transport.written[9:12]))

    @property
    def error(self) -> dict[str, Any]:
        found = json.loads(bytes(self.transport.written).split(b"\r\n\r\n", 1)[1])["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return dict(found)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_says_nothing_is_let_go_without_a_word() -> None:
    client = Client()
    client.at(9)
    assert not client.transport.closed
    client.at(11)
    assert client.transport.written == b""
    assert client.transport.closed


async def test_a_head_that_drips_is_answered_408_however_often_something_comes() -> None:
    client = Client()
    client.send(HEAD)
    for second in range(1, 10):
        client.at(second)
        client.send(b"x-%d: y\r\n" % second)
    assert not client.transport.closed
    client.at(11)
    assert client.status == 408
    assert client.error["code"] == "request_timeout"
    assert client.transport.closed


async def test_the_head_of_a_later_request_has_its_own_time() -> None:
    client = Client()
    client.app.go.set()
    client.send(HEAD + b"\r\n")
    await settled()
    assert client.status == 200
    client.at(60)
    assert not client.transport.closed
    client.send(HEAD)
    client.at(69)
    assert not client.transport.closed
    client.at(71)
    assert b" 408 " in client.transport.written
    assert client.transport.closed


async def test_a_body_that_stops_is_answered_408_and_its_application_told() -> None:
    client = Client()
    client.send(BODY + b"12345")
    await settled()
    client.at(4)
    assert not client.transport.closed
    client.at(6)
    assert client.status == 408
    await settled()
    assert client.app.gone
    assert client.app.refused_with == 408
    assert client.transport.closed


async def test_a_body_that_drips_has_a_time_too() -> None:
    client = Client()
    client.send(HEAD + b"content-length: 100\r\n\r\n")
    for second in range(2, 20, 2):
        client.at(second)
        client.send(b"x")
        assert not client.transport.closed
    client.at(21)
    assert client.status == 408


async def test_a_body_that_nobody_takes_is_not_the_clients_fault() -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    client = Client(never)
    client.send(HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 100_000)
    await settled()
    assert not client.transport.reading
    for second in range(1, 40):
        client.at(second)
    assert not client.transport.closed


async def test_the_rest_of_a_body_that_is_answered_already_has_its_time_and_no_second_answer() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    client = Client(refuse)
    client.send(BODY + b"1")
    await settled()
    client.at(6)
    assert client.transport.closed
    assert client.transport.written.count(b"HTTP/1.1") == 1


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("opening", "more"),
    [(b"2\r\n{}\r\n0\r\nx-t: ", b"a" * 400), (b"2\r\n{}\r\n0\r\n", b"x-t: a\r\n" * 50), (b"2;", b"a" * 400)],
    ids=["one-trailer", "many-trailers", "chunk-extension"],
)
async def test_what_stands_beside_a_bodys_content_is_bounded_as_a_head_is(opening: bytes, more: bytes) -> None:
    client = Client()
    client.send(CHUNKED)
    client.send(opening)
    for _ in range(2):
        client.send(more)
    assert not client.transport.closed
    client.send(more)
    assert (client.status, client.transport.closed) == (431, True)
    assert "server.max_header_bytes" in client.error["message"]
    await settled()
    assert client.app.gone


async def test_a_long_body_of_small_chunks_is_no_trouble() -> None:
    client = Client()
    client.app.go.set()
    client.send(CHUNKED)
    for _ in range(1000):
        client.send(b"1\r\na\r\n")
    client.send(b"0\r\nx-t: a\r\n\r\n")
    await settled()
    assert client.status == 200


async def test_fields_behind_a_body_are_no_fields_of_the_request() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    client = Client(look)
    client.send(CHUNKED + b"2\r\n{}\r\n0\r\nauthorization: Bearer x\r\n\r\n")
    await settled()
    assert client.status == 200
    assert [name for name, _ in seen] == [b"host", b"transfer-encoding"]


async def test_who_goes_on_sending_a_body_that_is_refused_is_let_go() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    client = Client(refuse)
    client.send(HEAD + b"content-length: 100000000\r\n\r\n")
    await settled()
    for _ in range(16):
        client.send(b"a" * 65536)
    assert not client.transport.closed
    client.send(b"a")
    assert client.transport.written.count(b"HTTP/1.1") == 1
    assert client.transport.closed


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5\r\nabcdefgh", b"-1\r\n", b"5 \x00\r\n", b"fffffffffffffffff\r\n"])
async def test_a_chunk_that_is_none_is_answered_400(chunk: bytes) -> None:
    client = Client()
    client.send(HEAD + b'transfer-encoding: chunked\r\n\r\n4\r\n{"a"\r\n')
    await settled()
    client.send(chunk)
    assert client.status == 400
    assert client.error["type"] == "invalid_request_error"
    await settled()
    assert client.app.gone
    assert client.transport.closed


async def test_a_malformed_request_behind_another_gets_no_answer_into_the_others() -> None:
    client = Client()
    client.send(HEAD + b"\r\n")
    await settled()
    client.send(b"NONSENSE\r\n\r\n")
    assert client.transport.closed
    assert client.transport.written == b""


async def test_who_takes_nothing_of_the_answer_is_cut() -> None:
    client = Client()
    client.app.answer = b"x" * 100_000
    client.app.go.set()
    client.send(HEAD + b"\r\n")
    await settled()
    client.transport.unsent = 90_000
    client.at(1)
    client.transport.unsent = 80_000
    client.at(25)
    client.at(31)
    assert not client.transport.aborted
    client.at(54)
    assert not client.transport.aborted
    client.at(62)
    assert client.transport.aborted


async def test_so_is_who_stops_taking_a_stream_and_the_stream_learns_of_it() -> None:
    ended = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            if client.protocol.cycle.disconnected:
                ended.set()
                return

    client = Client(endless)
    client.send(HEAD + b"\r\n")
    await settled()
    client.transport.unsent = 70_000
    client.protocol.pause_writing()
    for second in (1, 20, 32):
        client.at(second)
    assert client.transport.aborted
    client.protocol.connection_lost(None)
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_stream_that_still_writes_is_not_stuck() -> None:
    client = Client()
    client.send(HEAD + b"\r\n")
    await settled()
    client.transport.unsent = 500
    for second in (1, 40, 80):
        client.at(second)
    assert not client.transport.closed


async def test_one_connection_too_many_is_told_so() -> None:
    connections = Connections(LIMITS)
    held = [Client(connections=connections) for _ in range(3)]
    refused = Client(connections=connections)
    assert refused.status == 429
    assert "server.max_connections" in refused.error["message"]
    assert refused.transport.closed
    for client in (*held, refused):
        client.protocol.connection_lost(None)
    assert connections.open == set()


async def test_a_second_request_that_is_refused_at_its_head_is_answered() -> None:
    client = Client()
    client.app.go.set()
    client.send(HEAD + b"\r\n")
    await settled()
    client.send(HEAD + b"x: " + b"y" * 2000 + b"\r\n\r\n")
    assert b"HTTP/1.1 431 " in client.transport.written
    assert client.transport.closed
