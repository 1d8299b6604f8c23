"""Any bytes on a connection: heads and framing that are wrong in every way, in any pieces."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import httptools
from hypothesis import given
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from router.api.http_protocol import BoundedHttp, ClientLimits, Connections
from tests.support.fuzz import World, judge, share
from tests.support.transport import FakeTransport

BODY = b'{"model":"stub","messages":[{"role":"user","content":"x"}]}'
LINES = st.sampled_from(
    [
        *(b"POST /v1/chat/completions HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\n", b"POST /tokenize HTTP/1.1\r\n"),
        *(b"POST /v1/completions HTTP/1.0\r\n", b"HEAD /version HTTP/1.1\r\n", b"CONNECT a:1 HTTP/1.1\r\n"),
        *(b"GET http://h/health HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"GET /v1/models/%ff%00 HTTP/1.1\r\n"),
        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n", b"GET /\xff HTTP/1.1\r\n", b"\x16\x03\x01\x02"),
        *(b"GET //[ HTTP/1.1\r\n", b"POST /v1/messages?%zz HTTP/1.1\r\n", b"GET /debug/endpoints\r\n"),
    ]
) | st.binary(max_size=30)
FIELD = st.sampled_from(
    [
        *(
            b"host: r\r\n",
            b"connection: close\r\n",
            b"connection: upgrade\r\nupgrade: websocket\r\n",
            b"expect: 100-continue\r\n",
        ),
        *(
            b"content-length: 59\r\n",
            b"content-length: 0\r\n",
            b"content-length: -1\r\n",
            b"content-length: 59, 59\r\n",
        ),
        *(b"content-length: 99999999999999999999\r\n", b"content-length: +5\r\n", b"transfer-encoding: chunked\r\n"),
        *(
            b"transfer-encoding: gzip, chunked\r\n",
            b"transfer-encoding : chunked\r\n",
            b"transfer-encoding: xchunked\r\n",
        ),
        *(
            b"content-type: application/json\r\n",
            b"x: " + b"y" * 70_000 + b"\r\n",
            b" folded\r\n",
            b": empty\r\n",
            b"a\x00b: c\r\n",
        ),
        *(
            b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n",
            b"content-encoding: gzip\r\n",
        ),
    ]
) | st.binary(max_size=20)
CHUNK = st.sampled_from(
    [
        *(
            b"3b\r\n" + BODY + b"\r\n",
            b"0\r\n\r\n",
            b"0\r\nx: y\r\n\r\n",
            b"zz\r\n",
            b"5;a=b\r\nhello\r\n",
            b"5\nhello\n",
        ),
        *(
            b"ffffffffffffffff\r\n",
            b"-1\r\n",
            b"5\r\nhelloworld",
            b" 5\r\nhello\r\n",
            b"1" + b"0" * 40 + b"\r\n",
            BODY,
            b"\r\n",
        ),
    ]
) | st.binary(max_size=20)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Some requests' bytes, in pieces."""
    wire = b""
    for _ in range(draw(st.integers(1, 3))):
        wire += (
            draw(LINES)
            + b"".join(draw(st.lists(FIELD, max_size=5)))
            + draw(st.sampled_from([b"\r\n", b"\r\n", b"\n", b""]))
        )
        wire += b"".join(draw(st.lists(CHUNK, max_size=4)))
    cuts = sorted({draw(st.integers(0, len(wire))) for _ in range(draw(st.integers(0, 3)))})
    edges = [0, *cuts, len(wire)]
    return [wire[a:b] for a, b in pairwise(edges)]


class Answers:
    """Reads whole answers off what was written. A cut one is left out."""

    def __init__(self) -> None:
        self.whole: list[tuple[int, dict[bytes, bytes], bytes]] = []
        self._fields: dict[bytes, bytes] = {}
        self._body = b""
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._fields, self._body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.whole.append((self.parser.get_status_code(), self._fields, self._body))


async def _converse(world: World, pieces: list[bytes]) -> None:
    connections = Connections(ClientLimits(head_s=5, body_idle_s=5))
    config = Config(world.app.asgi, log_config=None, lifespan="off", ws="none", access_log=False)
    config.load()
    state = ServerState()
    transport = FakeTransport()
    protocol = connections(config=config, server_state=state, app_state={})
    assert isinstance(protocol, BoundedHttp)
    protocol.connection_made(transport)
    for piece in pieces:
        if not transport.closed and piece:
            protocol.data_received(piece)
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        while not transport.closed and not _waits_for_the_client(protocol):
            await asyncio.sleep(0)
    if not transport.closed:
        # What is still owed by the client is waited for as long as the limits say, and no longer.
        connections.look(connections.now + 6)
    protocol.connection_lost(None)
    async with asyncio.timeout(30):
        while state.tasks:
            await asyncio.sleep(0)
    assert connections.open == set()
    _read(bytes(transport.written))


def _waits_for_the_client(protocol: BoundedHttp) -> bool:
    cycle = protocol._latest()
    return cycle is None or cycle.response_complete or cycle.more_body


def _read(written: bytes) -> None:
    answers = Answers()
    # An answer to HEAD says how long its body would be: what comes next is read as that body, so nothing more is.
    try:
        answers.parser.feed_data(written)
    except httptools.HttpParserError:
        assert b"HTTP/1.1" in written
    for status, fields, body in answers.whole:
        if status >= 200:
            judge(status, fields, body, head=b"HTTP/1.1" in body)


@share(0.2)
@given(streams())
def test_any_bytes(world: World, pieces: list[bytes]) -> None:
    world.run(_converse(world, pieces))
