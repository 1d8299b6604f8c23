"""One caller's connection, over every kind of server and every way of failing."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvindex.redis_link import RedisLink
from kvindex.redis_trouble import StoreUnavailable
from loadtest.redis_groups import ClusterServers, WatchedServers
from loadtest.redis_server import RedisServer, server_binaries

BINARIES = server_binaries()


def name_of(binary: str) -> str:
    return Path(binary).name


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


async def echo(link: RedisLink, text: str) -> str:
    answer: bytes = await link.call(lambda client: client.echo(text))
    return answer.decode()


async def until_it_works(work: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await work()
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                return


class Proxy:
    """A TCP proxy that cuts the server's answers after some bytes, or holds them back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.cut_after: int | None = None
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, None))
                group.create_task(self._pump(there, writer, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            back.close()
            writer.close()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: asyncio.StreamWriter | None
    ) -> None:
        while piece := await reader.read(65536):
            if answers is not None and self.cut_after is not None:
                writer.write(piece[: self.cut_after])
                await writer.drain()
                raise ConnectionResetError
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.port)
    await proxy.start()
    yield proxy
    await proxy.aclose()


@pytest.mark.parametrize("cut_after", [0, 1, 3, 7])
async def test_an_answer_cut_short_is_a_failure_and_the_next_call_starts_afresh(proxy: Proxy, cut_after: int) -> None:
    link = RedisLink(f"redis://127.0.0.1:{proxy.port}", budget_s=2.0)
    for number in range(10):
        assert await echo(link, f"whole {number}") == f"whole {number}"
        proxy.cut_after = cut_after
        with pytest.raises(StoreUnavailable):
            await echo(link, f"cut {number}")
        proxy.cut_after = None
    await link.aclose()


async def test_an_answer_that_comes_too_late_is_never_read_by_the_next_call(server: RedisServer) -> None:
    link = RedisLink(server.url, budget_s=0.2)
    for number in range(3):
        assert await echo(link, f"before {number}") == f"before {number}"
        server.freeze()
        with pytest.raises(StoreUnavailable):
            await echo(link, "too late")
        cancelled = asyncio.create_task(echo(link, "nobody waits"))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        server.thaw()
        await until_it_works(lambda: echo(link, "warm"))
        for each in range(20):
            assert await echo(link, f"{number}/{each}") == f"{number}/{each}"
    await link.aclose()


async def test_cancelled_in_the_middle_again_and_again_no_answer_is_anothers(server: RedisServer) -> None:
    link = RedisLink(server.url, budget_s=5.0)
    for number in range(60):
        cancelled = asyncio.create_task(echo(link, f"cancelled {number}"))
        for _ in range(number % 6):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await echo(link, f"kept {number}") == f"kept {number}"
    await link.aclose()


async def test_a_pipeline_cancelled_on_a_cluster_leaves_no_answer_behind(cluster: ClusterServers) -> None:
    link = RedisLink(cluster.url, budget_s=5.0)

    async def pair(client: Any, number: int) -> list[bytes]:
        pipe = client.pipeline(transaction=False)
        for key in ("a", "b", "c", "d"):
            pipe.set(f"{{{key}}}:x", number).get(f"{{{key}}}:x")
        return list(await pipe.execute())[1::2]

    for number in range(30):
        cancelled = asyncio.create_task(link.call(partial(pair, number=-1)))
        for _ in range(3 * (number % 8)):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await link.call(partial(pair, number=number)) == [str(number).encode()] * 4
    await link.aclose()


@pytest.fixture(scope="module", params=BINARIES, ids=name_of)
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterServers]:
    with ClusterServers(request.param) as cluster:
        yield cluster


@pytest.mark.parametrize("binary", BINARIES, ids=name_of)
async def test_a_failover_by_sentinel_is_followed(binary: str) -> None:
    with WatchedServers(binary) as watched:
        link = RedisLink(watched.url, budget_s=1.0)
        await link.call(lambda client: client.set("k", "v"))
        assert b"$1\r\nv" in watched.first.command("GET", "k")
        watched.first.stop()
        await until_it_works(lambda: link.call(lambda client: client.set("k", "w")))
        assert b"$1\r\nw" in watched.second.command("GET", "k")
        await link.aclose()


async def test_a_failover_of_a_cluster_is_followed() -> None:
    with ClusterServers() as cluster:
        link = RedisLink(cluster.url, budget_s=1.0)

        async def write_all(value: str) -> None:
            for key in ("a", "b", "c", "d", "e", "f"):
                await link.call(methodcaller("set", key, value))

        await until_it_works(lambda: write_all("v"))
        cluster.primaries[0].stop()
        await until_it_works(lambda: write_all("w"))
        await link.aclose()


async def test_user_and_password_come_in_the_url_and_never_in_an_error() -> None:
    options = ["requirepass top", "user router on >s3cret ~* &* +@all"]
    with RedisServer(None, *options) as server:
        for credentials in (":top", "router:s3cret"):
            link = RedisLink(server.url.replace("//", f"//{credentials}@"))
            assert await echo(link, "x") == "x"
            await link.aclose()
        refused = RedisLink(server.url.replace("//", "//router:wrong@"))
        with pytest.raises(StoreUnavailable) as error:
            await echo(refused, "x")
        assert "wrong" not in str(error.value)
        await refused.aclose()


OPENSSL = shutil.which("openssl")


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A CA of our own, and a certificate of 127.0.0.1 by it with its key."""
    assert OPENSSL is not None
    ca, ca_key, cert, key, request = (folder / name for name in ("ca.pem", "ca.key", "cert.pem", "key.pem", "request"))
    extension = folder / "extension"
    extension.write_text("subjectAltName=IP:127.0.0.1\n")
    new = [OPENSSL, "req", "-newkey", "rsa:2048", "-nodes"]
    for command in (
        [*new, "-x509", "-days", "2", "-subj", "/CN=test CA", "-keyout", str(ca_key), "-out", str(ca)],
        [*new, "-subj", "/CN=test", "-keyout", str(key), "-out", str(request)],
        [
            *(OPENSSL, "x509", "-req", "-in", str(request), "-days", "2", "-CA", str(ca), "-CAkey", str(ca_key)),
            *("-CAcreateserial", "-extfile", str(extension), "-out", str(cert)),
        ],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return ca, cert, key


class SecureServer(NamedTuple):
    url: str
    ca: Path
    cert: Path
    key: Path


@contextmanager
def secure_server(folder: Path, *, asks_clients: bool) -> Iterator[SecureServer]:
    """One that speaks TLS; skips the test where none here does."""
    if OPENSSL is None:
        pytest.skip("needs the openssl command to make certificates")
    ca, cert, key = certificates(folder)
    options = [f"tls-cert-file {cert}", f"tls-key-file {key}", f"tls-ca-cert-file {ca}"]
    for binary in BINARIES:
        port = RedisServer(binary).port
        asks = "yes" if asks_clients else "no"
        server = RedisServer(binary, *options, f"tls-auth-clients {asks}", f"tls-port {port}")
        try:
            server.start()
        except RuntimeError:
            # Built without TLS.
            continue
        with closing(server):
            yield SecureServer(f"rediss://127.0.0.1:{port}", ca, cert, key)
        return
    pytest.skip("no server here was built with TLS")


async def test_a_tls_server_is_checked_against_the_ca_given(tmp_path: Path) -> None:
    with secure_server(tmp_path, asks_clients=False) as server:
        trusted = RedisLink(server.url, ca_file=str(server.ca), budget_s=5.0)
        assert await echo(trusted, "x") == "x"
        await trusted.aclose()
        stranger = RedisLink(server.url, budget_s=5.0)
        with pytest.raises(StoreUnavailable, match=r"certificate is not trusted \(.*\): give .* redis\.ca_file"):
            await echo(stranger, "x")
        await stranger.aclose()


async def test_a_server_that_asks_for_a_certificate_is_shown_one(tmp_path: Path) -> None:
    with secure_server(tmp_path, asks_clients=True) as server:
        own = {"certificate": str(server.cert), "key": str(server.key)}
        known = RedisLink(server.url, ca_file=str(server.ca), budget_s=5.0, **own)
        assert await echo(known, "x") == "x"
        await known.aclose()
        unknown = RedisLink(server.url, ca_file=str(server.ca), budget_s=5.0)
        with pytest.raises(StoreUnavailable, match="client's certificate"):
            await echo(unknown, "x")
        await unknown.aclose()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://{}/99", "no database of that number"),
        ("redis://nobody.invalid:{port}", "host name is not known"),
        ("redis+sentinel://{}/service", "no sentinel tells a primary|does not know a command"),
        ("redis+cluster://{}", "no node answers as one of a cluster|it is no cluster"),
        ("redis://:wrong@{}", "refuses the user or the password"),
        ("rediss://{}", "TLS with it fails|closed the connection|does not answer"),
        ("unix:///nowhere/at/all", "no socket file"),
    ],
)
async def test_why_a_server_is_of_no_use_and_what_mends_it_is_said(server: RedisServer, url: str, reason: str) -> None:
    link = RedisLink(url.format(f"127.0.0.1:{server.port}", port=server.port), budget_s=2.0)
    with pytest.raises(StoreUnavailable, match=reason) as error:
        await link.eval("return 1", ["k"], [])
    assert "wrong" not in str(error.value)
    await link.aclose()


@pytest.mark.parametrize("scheme", ["redis://", "redis+cluster://"])
@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (None, "nobody listens there|no node answers"),
        (http, "is no Redis|no node answers|closed"),
        (silence, r"does not answer within 0\.3 s|no node answers"),
        (closes, "closed the connection|no node answers"),
    ],
)
async def test_whatever_listens_there_is_a_server_of_no_use_and_nothing_else(
    scheme: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None, reason: str
) -> None:
    async with await asyncio.start_server(serve or closes, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        if serve is None:
            listener.close()
            await listener.wait_closed()
        link = RedisLink(f"{scheme}127.0.0.1:{port}", budget_s=0.3)
        with pytest.raises(StoreUnavailable, match=reason):
            await link.eval("return 1", ["k"], [])
        await link.aclose()


async def test_what_an_acl_does_not_allow_is_named() -> None:
    with RedisServer(None, "user router on >s3cret ~kvrouter:* +@all -select") as server:
        for url, key, reason in (
            (f"redis://router:s3cret@127.0.0.1:{server.port}/3", "kvrouter:k", "may not use SELECT"),
            (f"redis://router:s3cret@127.0.0.1:{server.port}", "k", "may not use the keys of redis.namespace"),
        ):
            link = RedisLink(url)
            with pytest.raises(StoreUnavailable, match=reason):
                await link.call(methodcaller("get", key))
            await link.aclose()
