"""Relay: what stays bounded and what comes back when engines or clients misbehave. Nothing here measures time."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.core import Endpoint
from router.ports import UpstreamBroken, UpstreamRefused
from router.upstream.connection import Connection, Limits, RelayResponse
from router.upstream.relay import ConnectionCounts, Relay, RelayOptions
from tests.support.loops import on_both_loops
from tests.support.rawserver import Peer, PeerGone, RawServer, answers, keeps_alive

MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
QUICK = RelayOptions(sweep_s=0.02)


@asynccontextmanager
async def relaying(options: RelayOptions = QUICK, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Relay]:
    relay = Relay(options, ssl_context=ssl_context)
    try:
        yield relay
    finally:
        await relay.aclose()


async def post(relay: Relay, url: str, body: bytes = b"{}") -> RelayResponse:
    return await relay.open(Endpoint(id="e", url=url), b"POST", "/", [], body)


async def length_of(response: RelayResponse) -> int:
    length = 0
    while part := await response.read():
        length += len(part)
    return length


async def settled(server: RawServer) -> int:
    """What the server has managed to send once it sends no more."""
    before = -1
    while server.sent_bytes != before:
        before = server.sent_bytes
        await asyncio.sleep(0.1)
    return before


@on_both_loops
async def test_an_engine_is_held_back_while_nobody_reads_bpr_01() -> None:
    total, piece = 48 * MIB, bytes(64 * 1024)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        for _ in range(total // len(piece)):
            await peer.send(piece)
        await peer.gone()

    async with RawServer(script) as server, relaying() as relay:
        response = await post(relay, server.url)
        # Two socket buffers of a few MiB each lie between the script and the relay.
        assert await settled(server) < 24 * MIB
        assert len(response.read_nowait()) <= Limits().buffer_bytes + MIB
        assert await length_of(response) > total - 2 * MIB
        # The connection reads again: it sees its next answer, or its end.
        assert relay.counts()[server.url] == ConnectionCounts(open=1, idle=1)


@on_both_loops
async def test_an_abort_while_held_back_reaches_the_engine() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        while True:
            await peer.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")

    async with RawServer(script) as server, relaying() as relay:
        response = await post(relay, server.url)
        await settled(server)
        await response.close()
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_a_large_body_arrives_whole() -> None:
    body = random.Random(1).randbytes(5 * MIB + 13)
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        for _ in range(2):
            assert await length_of(await post(relay, server.url, body)) == 2
        assert [request.body == body for request in server.requests] == [True, True]
        assert server.connections == 1


@on_both_loops
async def test_an_answer_that_comes_before_the_body_was_sent_is_delivered_and_the_connection_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.gone()

    async with RawServer(script) as server, relaying(QUICK._replace(keep_idle_s=60)) as relay:
        # More than the kernel takes, while the script does not read.
        response = await post(relay, server.url, bytes(64 * MIB))
        assert (response.status, await length_of(response)) == (413, 2)
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_a_body_is_sent_on_while_its_answer_already_streams() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.read(16 * MIB)
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")
        await peer.gone()

    async with RawServer(script) as server, relaying() as relay:
        assert await length_of(await post(relay, server.url, bytes(16 * MIB))) == 2


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x: aaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"a" * 1000),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"x: aaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
        (CHUNKED + b"1\r\na\r\n1;", b"x" * 1000),
    ],
    ids=["fields", "field", "interim answers", "trailers", "chunk extension"],
)
@on_both_loops
async def test_what_never_becomes_a_body_is_bounded(beginning: bytes, endless: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(beginning)
        while True:
            await peer.send(endless * 10)

    async with RawServer(script) as server, relaying() as relay:
        with pytest.raises(UpstreamBroken):
            await length_of(await post(relay, server.url))
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_a_storm_of_cancellations_leaves_nothing_behind_dis_06_dis_07() -> None:
    chance = random.Random(7)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(chance.random() * 0.01)
            await peer.send(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(chance.random() * 0.01)
            await peer.send(b"0\r\n\r\n")

    async def one(relay: Relay, url: str) -> None:
        response = await post(relay, url)
        try:
            await length_of(response)
        finally:
            await response.close()

    async with RawServer(script) as server, relaying() as relay:
        running = [asyncio.ensure_future(one(relay, server.url)) for _ in range(150)]
        for task in running:
            if chance.random() < 0.7:
                asyncio.get_running_loop().call_later(chance.random() * 0.03, task.cancel)
        results = await asyncio.gather(*running, return_exceptions=True)
        unexpected = [r for r in results if not isinstance(r, asyncio.CancelledError) and r is not None]
        assert unexpected == []
        await asyncio.gather(*(one(relay, server.url) for _ in range(50)))
        counts = relay.counts()[server.url]
        assert counts.open == counts.idle
        await server.until(lambda s: s.open == counts.open)


@on_both_loops
async def test_a_lost_connection_is_freed_without_the_garbage_collector_mem_03() -> None:
    def kept() -> int:
        return sum(type(thing) is Connection for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        async with RawServer(answers(OK)) as server, relaying() as relay:
            for _ in range(20):
                await length_of(await post(relay, server.url))
            await server.until(lambda s: s.ended == server.connections and not relay.counts())
            await asyncio.sleep(0.05)
            assert kept() <= before + 1
    finally:
        gc.enable()


@on_both_loops
async def test_connects_that_are_cancelled_are_closed() -> None:
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        for turns in range(8):
            task = asyncio.ensure_future(post(relay, server.url))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await length_of(await post(relay, server.url))
        counts = relay.counts()[server.url]
        assert counts.open == counts.idle
        await server.until(lambda s: s.open == counts.open)


@on_both_loops
async def test_many_streams_at_once_come_through_whole() -> None:
    event = b"data: " + b"x" * 190 + b"\n\n"

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            await peer.send(CHUNKED)
            for number in range(20):
                mark = request.body + b":%d\n" % number + event
                await peer.send(b"%x\r\n%b\r\n" % (len(mark), mark))
                await asyncio.sleep(0)
            await peer.send(b"0\r\n\r\n")

    async def one(relay: Relay, url: str, name: bytes) -> bool:
        response = await post(relay, url, name)
        got = b""
        while part := await response.read():
            got += part
        return got == b"".join(name + b":%d\n" % number + event for number in range(20))

    async with RawServer(script) as server, relaying() as relay:
        assert all(await asyncio.gather(*(one(relay, server.url, b"%d" % n) for n in range(200))))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, so there is no certificate to serve with")
    return cert, key


def serving_with(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@on_both_loops
async def test_an_https_endpoint_is_verified_and_kept_open(certificate: tuple[Path, Path]) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    async with (
        RawServer(keeps_alive(OK), ssl_context=serving_with(certificate)) as server,
        relaying(ssl_context=trusting) as relay,
    ):
        for _ in range(3):
            assert await length_of(await post(relay, server.url)) == 2
        assert server.connections == 1


@on_both_loops
async def test_an_https_endpoint_with_an_unknown_certificate_is_refused(certificate: tuple[Path, Path]) -> None:
    async with RawServer(answers(OK), ssl_context=serving_with(certificate)) as server, relaying() as relay:
        with pytest.raises(UpstreamRefused, match=r"(?i)certificate"):
            await post(relay, server.url)


@on_both_loops
async def test_a_plain_server_behind_an_https_url_is_refused() -> None:
    async def script(peer: Peer) -> None:
        try:
            await peer.request()
        except PeerGone:
            return

    async with RawServer(script) as server, relaying(QUICK._replace(connect_timeout_s=0.3)) as relay:
        with pytest.raises(UpstreamRefused):
            await post(relay, server.url.replace("http:", "https:"))
