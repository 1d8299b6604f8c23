"""Control calls end in a value or a named error, within their time and size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from router.core import Endpoint
from router.upstream.control import ControlClient, ControlError
from router.upstream.relay import Relay
from router.upstream.transport import RelayTransport
from tests.support.loops import on_both_loops
from tests.support.rawserver import Peer, RawServer, answers, keeps_alive


def answer(body: bytes, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, fields, len(body), body)


@asynccontextmanager
async def calling(max_bytes: int = 1000) -> AsyncIterator[ControlClient]:
    client = ControlClient(timeout_s=10, max_bytes=max_bytes)
    try:
        yield client
    finally:
        await client.aclose()


def at(url: str) -> Endpoint:
    return Endpoint(id="e", url=url, api_key="k-1", rank=2)


@on_both_loops
async def test_text_and_json_come_back_over_one_connection() -> None:
    async with RawServer(keeps_alive(answer(b'{"a": [1]}'))) as server, calling() as client:
        assert await client.get_text(at(server.url), "/metrics") == '{"a": [1]}'
        assert await client.get_json(at(server.url + "/prefix"), "/v1/models?x=1") == {"a": [1]}
        assert await client.post_json(at(server.url), "/tokenize", {"prompt": "é"}) == {"a": [1]}
        assert await client.post_json(at(server.url), "/tokenize", b"{}") == {"a": [1]}
        assert server.connections == 1
    lines = [request.line for request in server.requests]
    assert lines[:2] == [b"GET /metrics HTTP/1.1", b"GET /prefix/v1/models?x=1 HTTP/1.1"]
    assert json.loads(server.requests[2].body) == {"prompt": "é"}
    assert server.requests[3].body == b"{}"
    for request in server.requests:
        assert request.values(b"authorization") == [b"Bearer k-1"]
        assert request.values(b"x-data-parallel-rank") == [b"2"]
        assert len(request.values(b"host")) == len(request.values(b"accept-encoding")) == 1
    assert server.requests[2].values(b"content-type") == [b"application/json"]


@pytest.mark.parametrize(
    ("wire", "reason", "status"),
    [
        (answer(b"secret", b"503 Down"), "status", 503),
        (answer(b"", b"302 Found", b"location: http://elsewhere/\r\n"), "status", 302),
        (answer(b"x" * 1001), "too-large", 200),
        (answer(b"x", fields=b"content-encoding: gzip\r\n"), "encoded", 200),
        (answer(b"secret"), "not-json", None),
        (answer(b"\xff"), "not-json", None),
        (answer(b"[" * 1000), "not-json", None),
        (b"XYZ\r\n", "broken", None),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsecret", "broken", None),
    ],
)
@on_both_loops
async def test_what_is_no_answer_is_a_named_error(wire: bytes, reason: str, status: int | None) -> None:
    async with RawServer(answers(wire)) as server, calling() as client:
        with pytest.raises(ControlError) as caught:
            await client.get_json(at(server.url), "/")
        assert (caught.value.reason, caught.value.status) == (reason, status)
        assert "secret" not in str(caught.value)


@on_both_loops
async def test_nobody_there_is_a_refusal() -> None:
    async with RawServer(answers()) as server:
        url = server.url
    async with calling() as client:
        with pytest.raises(ControlError, match="refused"):
            await client.get_text(at(url), "/")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na"], ids=["nothing", "a part"])
@on_both_loops
async def test_one_time_limit_covers_all_of_a_call_and_closes_it(said: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if said:
            await peer.send(said)
        await peer.gone()

    async with RawServer(script) as server, calling() as client:
        with pytest.raises(ControlError, match="timeout"):
            await client.get_text(at(server.url), "/", timeout_s=0.05)
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_calls_cancelled_in_any_number_leave_the_client_whole_dis_07() -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(0.02)
            await peer.send(answer(b"1"))

    async with RawServer(script) as server, calling() as client:
        for _ in range(5):
            tasks = [asyncio.ensure_future(client.get_text(at(server.url), "/")) for _ in range(20)]
            await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert await asyncio.gather(*(client.get_json(at(server.url), "/") for _ in range(10))) == [1] * 10


@on_both_loops
async def test_the_transport_streams_under_any_httpx_client() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    async with (
        RawServer(answers(chunked, b"3\r\ntwo\r\n0\r\n\r\n")) as server,
        httpx.AsyncClient(transport=RelayTransport(Relay()), trust_env=False) as client,
        client.stream("POST", server.url, content=b"abc") as response,
    ):
        assert b"".join([part async for part in response.aiter_raw()]) == b"onetwo"
    assert server.requests[0].body == b"abc"


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (b"XYZ\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", httpx.RemoteProtocolError),
    ],
)
@on_both_loops
async def test_the_transport_names_errors_as_httpx_does(wire: bytes, error: type[Exception]) -> None:
    async with (
        RawServer(answers(wire)) as server,
        httpx.AsyncClient(transport=RelayTransport(Relay()), trust_env=False) as client,
    ):
        with pytest.raises(error):
            await client.get(server.url)
