"""TLS and client certificates, on both sides of the router."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trustme

from router.certificates import Certificates
from router.check import check
from router.errors import ConfigError
from router.settings import Settings, load
from tests.support.field import CHAT, ESTIMATED, chat, field
from tests.support.router import running_router
from tests.support.stub_engine import StubEngine, serve


class Authority(NamedTuple):
    """A certificate authority, and where its certificate lies."""

    ca: trustme.CA
    file: Path

    def issue(self, folder: Path, name: str) -> dict[str, str]:
        """A certificate for `name`, as ``cert`` and ``key`` files."""
        issued = self.ca.issue_cert(name)
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return {"cert": str(cert), "key": str(key)}

    def trusting(self, client: dict[str, str] | None = None) -> ssl.SSLContext:
        """What a client trusts with, showing a certificate of its own if it has one."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client is not None:
            context.load_cert_chain(client["cert"], client["key"])
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    return Authority(ca, tmp_path / "ca.pem")


def serving_with(authority: Authority, pair: dict[str, str]) -> ssl.SSLContext:
    """An engine that asks for a client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(pair["cert"], pair["key"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def chatted(url: str, verify: ssl.SSLContext) -> int:
    async with httpx.AsyncClient(base_url=url, verify=verify, trust_env=False) as client:
        return (await client.post(CHAT, json=chat())).status_code


async def test_clients_and_administrators_are_served_over_tls(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue(tmp_path, "127.0.0.1")
    tls = {"server__tls_cert_file": pair["cert"], "server__tls_key_file": pair["key"]}
    async with field(serve, server__admin_port=1, **tls) as at:
        assert at.router.url.startswith("https://")
        assert await chatted(at.router.url, authority.trusting()) == 200
        with pytest.raises(httpx.ConnectError):
            await chatted(at.router.url, ssl.create_default_context())
        async with httpx.AsyncClient(verify=authority.trusting(), trust_env=False) as admin:
            assert (await admin.get(f"{at.router.admin_url}/debug/slots")).json()["at_rest"]


async def test_clients_must_show_a_certificate_where_an_authority_for_them_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    pair, own = authority.issue(tmp_path, "127.0.0.1"), authority.issue(tmp_path, "client.example")
    stranger = Authority(trustme.CA(), authority.file).issue(tmp_path, "stranger.example")
    tls = {
        "server__tls_cert_file": pair["cert"],
        "server__tls_key_file": pair["key"],
        "server__tls_client_ca_file": str(authority.file),
    }
    async with field(serve, **tls) as at:
        assert await chatted(at.router.url, authority.trusting(own)) == 200
        for shown in (None, stranger):
            with pytest.raises(httpx.TransportError):
                await chatted(at.router.url, authority.trusting(shown))
        assert at.calls == 1


async def test_connections_that_never_shake_hands_are_counted_and_timed_as_others_are(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue(tmp_path, "127.0.0.1")
    tls = {"server__tls_cert_file": pair["cert"], "server__tls_key_file": pair["key"]}
    async with (
        asyncio.timeout(60),
        field(serve, server__max_connections=3, server__head_timeout_s=2.0, **tls) as at,
    ):
        host, port = at.router.url.removeprefix("https://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        ended = await asyncio.gather(*(reader.read() for reader, _ in silent[3:]), return_exceptions=True)
        assert all(not answer or isinstance(answer, ConnectionError) for answer in ended)
        with pytest.raises(httpx.TransportError):
            await chatted(at.router.url, authority.trusting())
        # Their time is over: there is room again.
        await asyncio.gather(*(reader.read() for reader, _ in silent[:3]), return_exceptions=True)
        assert await chatted(at.router.url, authority.trusting()) == 200
        for _, writer in silent:
            writer.close()


async def test_who_speaks_no_tls_to_a_tls_port_is_let_go_and_nobody_else_suffers(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue(tmp_path, "127.0.0.1")
    async with (
        asyncio.timeout(60),
        field(serve, server__tls_cert_file=pair["cert"], server__tls_key_file=pair["key"]) as at,
    ):
        host, port = at.router.url.removeprefix("https://").split(":")
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        assert await chatted(at.router.url, authority.trusting()) == 200


async def test_a_renewed_certificate_is_taken_over_and_half_of_a_pair_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue(tmp_path, "127.0.0.1")
    async with field(serve, server__tls_cert_file=pair["cert"], server__tls_key_file=pair["key"]) as at:
        certificates = at.router.app.certificates
        other = Authority(trustme.CA(key_type=trustme.KeyType.ECDSA), tmp_path / "other-ca.pem")
        other.ca.cert_pem.write_to_path(other.file)
        (tmp_path / "new").mkdir()
        renewed = other.issue(tmp_path / "new", "127.0.0.1")

        Path(pair["cert"]).write_bytes(Path(renewed["cert"]).read_bytes())
        with pytest.raises(ConfigError, match=r"server\.tls_cert_file: .* cannot be used"):
            certificates.renew()
        assert await chatted(at.router.url, authority.trusting()) == 200

        Path(pair["key"]).write_bytes(Path(renewed["key"]).read_bytes())
        certificates.renew()
        assert await chatted(at.router.url, other.trusting()) == 200


async def test_engines_are_spoken_to_over_tls_with_a_certificate_and_a_name(
    authority: Authority, tmp_path: Path
) -> None:
    engine_pair = authority.issue(tmp_path, "engines.internal")
    own = authority.issue(tmp_path, "router.internal")
    flags: dict[str, Any] = {
        **ESTIMATED,
        "upstream__ca_file": str(authority.file),
        "upstream__client_cert_file": own["cert"],
        "upstream__client_key_file": own["key"],
        "upstream__tls_server_name": "engines.internal",
    }
    async with StubEngine(ssl_context=serving_with(authority, engine_pair)) as engine:
        for taken_away, status in ((None, 200), ("client", 503), ("tls_server_name", 503), ("ca_file", 503)):
            given = {name: value for name, value in flags.items() if taken_away is None or taken_away not in name}
            async with (
                running_router([{"url": engine.url}], **given) as router,
                httpx.AsyncClient(base_url=router.url, trust_env=False) as client,
            ):
                # Control calls find the model; the relay carries the chat.
                health = [state.health.value for state in router.app.pool.snapshot()]
                assert health == ["healthy" if status == 200 else "unhealthy"], taken_away
                assert (await client.post(CHAT, json=chat())).status_code == status, taken_away
        assert len(engine.calls) == 1


def settings(**given: dict[str, Any]) -> Settings:
    return Settings.model_validate({"endpoints": ["https://a:1"], **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"server": {"tls_cert_file": "FOLDER/ca.pem"}}, "server.tls_cert_file: FOLDER/ca.pem cannot be used"),
        (
            {"server": {"tls_cert_file": "FOLDER/none"}},
            "server.tls_cert_file: FOLDER/none cannot be used (No such file",
        ),
        ({"upstream": {"ca_file": "FOLDER/junk"}}, "upstream.ca_file: FOLDER/junk cannot be read as PEM"),
        ({"upstream": {"client_cert_file": "FOLDER/junk"}}, "upstream.client_cert_file: FOLDER/junk cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    authority: Authority, tmp_path: Path, given: dict[str, dict[str, str]], said: str
) -> None:
    (tmp_path / "junk").write_text("junk", encoding="utf-8")
    placed = {
        section: {key: value.replace("FOLDER", str(authority.file.parent)) for key, value in keys.items()}
        for section, keys in given.items()
    }
    with pytest.raises(ConfigError) as caught:
        Certificates(settings(**placed))
    assert str(caught.value).startswith(said.replace("FOLDER", str(tmp_path)))


def test_a_key_without_its_certificate_is_refused() -> None:
    for name, needed in (
        ("server.tls_key_file", "server.tls_cert_file"),
        ("server.tls_client_ca_file", "server.tls_cert_file"),
        ("upstream.client_key_file", "upstream.client_cert_file"),
    ):
        with pytest.raises(ConfigError, match=f"{name} is set and {needed} is not"):
            load(environ={}, flags={"endpoints": ["https://a:1"], name: "file"})


@pytest.mark.parametrize(
    ("given", "mend"),
    [
        ({}, "certificate not trusted: .*: name the certificate of the authority .* in upstream.ca_file"),
        ({"ca_file": "FOLDER/ca.pem"}, "certificate not trusted: .*: .* in upstream.tls_server_name"),
        ({"ca_file": "FOLDER/ca.pem", "tls_server_name": "engines.internal"}, "name one in upstream.client_cert_file"),
    ],
)
async def test_check_says_what_is_missing_for_an_engine_behind_tls(
    authority: Authority, tmp_path: Path, given: dict[str, str], mend: str
) -> None:
    engine_pair = authority.issue(tmp_path, "engines.internal")
    upstream = {name: value.replace("FOLDER", str(tmp_path)) for name, value in given.items()}
    async with StubEngine(ssl_context=serving_with(authority, engine_pair)) as engine:
        report = await check(Settings.model_validate({"endpoints": [engine.url], "upstream": upstream}))
    (trouble,) = report.engines[0].troubles
    assert re.search(mend, trouble), trouble
