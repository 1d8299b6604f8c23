"""What a hostile client may try through the router."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from tests.support.field import CHAT, COMPLETIONS, chat, field, pd_field
from tests.support.rawclient import connected, dumped, post
from tests.support.rawserver import Peer, RawServer
from tests.support.stub_engine import serve

BODY = dumped(chat())
STEERING = [
    "x-prefiller-url",
    "x-prefiller-host-port",
    "x-decoder-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-data-parallel-rank",
    "x-kv-cache-source-host-port",
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-llm-d-prefill-target",
    "x-kvrouter-endpoint",
    "x-prefill-url",
    "x-decode-url",
    "x-backend-url",
    "x-target-url",
    "x-upstream-url",
    "x-worker-url",
    "x-original-url",
    "x-rewrite-url",
    "x-original-host",
    "x-backend-host-port",
    "epp-profile",
]


async def canary(peer: Peer) -> None:
    await peer.gone()


async def test_sec_01_no_address_from_a_client_is_ever_dialled_or_passed_on() -> None:
    async with RawServer(canary) as trap, pd_field([serve], [serve]) as at:
        host_port = trap.url.removeprefix("http://")
        fields = [f"{name}: {trap.url if 'url' in name else host_port}" for name in STEERING]
        async with connected(at.router) as client:
            for path, body in ((CHAT, dumped(chat("long " * 100))), (COMPLETIONS, b'{"model":"stub","prompt":"x"}')):
                assert (await client.ask(post(path, body, *fields))).status == 200
        assert trap.connections == 0
        for engine in at.engines:
            for call in engine.calls:
                assert {name.decode() for name, _ in call.request.headers} & set(STEERING) == set()
        assert at.engines[0].calls


@pytest.mark.parametrize(
    "given",
    ["\x1b[31mred", "tab\tinside", "a" * 10_240, "ünïcode", "a b", "a\r\n b", "a;b=c", '"quoted"', "%0d%0aforged"],
)
async def test_sec_03_a_request_id_is_plain_and_short_or_replaced(given: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with field(serve, server__access_log=True) as at, connected(at.router) as client:
            with contextlib.suppress(asyncio.IncompleteReadError):
                answer = await client.ask(post(CHAT, BODY, f"x-request-id: {given}"))
                assert answer.status < 500
                for shown in answer.values("x-request-id"):
                    assert shown != given
                    assert len(shown) <= 128
                    assert shown.isascii()
                    assert shown.isprintable()
            for call in at.engine.calls:
                assert [len(value) for value in call.values("x-request-id")] == [32]
            assert (await at.chat()).status_code == 200
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "\x1b" not in logged
    assert given not in logged


async def test_sec_03_nothing_of_a_request_line_reaches_the_log_raw(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with field(serve, server__access_log=True) as at, connected(at.router) as client:
            answer = await client.ask(b"GET /v1/models/%1b%5b31m%0aforged HTTP/1.1\r\nhost: r\r\n\r\n")
            assert answer.status == 404
            model = dumped({**chat(), "model": "a\x1b[31m\nforged line"})
            assert (await client.ask(post(CHAT, model))).status == 404
            assert b"\x1b" not in answer.body
    lines = [line for record in caplog.records for line in record.getMessage().split("\n")]
    assert not any("\x1b" in line or line.startswith("forged") for line in lines)


ADMIN = [
    "/admin",
    "/admin/drain",
    "/admin/shutdown",
    "/admin/endpoints",
    "/admin/reload",
    "/flush",
    "/flush_cache",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/add_worker",
    "/remove_worker",
    "/list_workers",
    "/workers",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/is_paused",
    "/pause",
    "/resume",
    "/abort_request",
    "/abort_requests",
    "/start_profile",
    "/stop_profile",
    "/collective_rpc",
    "/update_weights",
    "/init_weights_update_group",
    "/scale_elastic_ep",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/server_info",
    "/get_server_info",
    "/get_model_info",
    "/set_internal_state",
    "/log_level",
    "/loglevel",
    "/logging",
    "/cache/clear",
    "/debug",
    "/debug/pprof",
    "/debug/requests",
    "/debug/scheduler",
    "/configure_logging",
    "/config",
    "/env",
    "/actuator",
    "/actuator/env",
    "/quit",
    "/shutdown",
    "/kill",
    "/inference/v1/generate",
]


async def test_sec_04_administration_is_not_reachable_without_a_key() -> None:
    async with field(serve, server__api_keys=["client-key"]) as at:
        before = at.router.app.pool.snapshot()
        for path in ADMIN:
            for method in ("GET", "POST", "DELETE"):
                answer = await at.client.request(method, path)
                assert answer.status_code in (401, 403, 404, 405), (method, path)
        for path in ("/debug/endpoints", "/v1/models", "/v1/models/stub"):
            assert (await at.client.get(path)).status_code == 401
        # Whether an engine sleeps or is paused the router asks by itself.
        asked = {target for target in at.engine.targets if target in ADMIN}
        assert asked <= {"/is_sleeping", "/is_paused"}
        assert [state.endpoint for state in at.router.app.pool.snapshot()] == [state.endpoint for state in before]


KNOWN = {
    "/is_paused",
    "/is_sleeping",
    "/health",
    "/v1/models",
    "/metrics",
    "/version",
    "/kv_event_sources",
    "/tokenize",
    CHAT,
    COMPLETIONS,
}


async def test_sec_06_no_target_reaches_another_path_or_host() -> None:
    async with RawServer(canary) as trap, field(serve) as at:
        host_port = trap.url.removeprefix("http://")
        targets = [
            "/v1/../reset_prefix_cache",
            "/v1/%2e%2e/sleep",
            "/v1/%2E%2E/%2e%2e/sleep",
            "/v1/chat/completions/../../../sleep",
            f"//{host_port}/v1/models",
            f"//{host_port}{CHAT}",
            f"http://{host_port}/v1/models",
            f"http://{host_port}{CHAT}",
            f"http://{host_port}",
            f"http://user:pw@{host_port}{CHAT}",
            f"{host_port}",
            "/v1/chat/completions%2f..%2f..%2fmetrics",
            "/v1/chat%2fcompletions",
            "/v1/chat/completions#/../sleep",
            "/v1/chat/completions%23",
            "/v1/chat/completions%3fa=b",
            "/v1/chat/completions?/../../sleep",
            "/v1/chat/completions?a=%0d%0ax-forged:%201",
            "/v1/chat/completions?a=\x7f",
            "/v1/chat/completions?a=\xff",
            "/v1/chat/completions?a=b\\c",
            '/v1/chat/completions?a={}|^`"<>',
            "/v1/chat/completions?a=\tb",
            "/v1\\..\\sleep",
            "/v1/responses/..%2f..%2fsleep",
            "/v1/responses/%2e%2e/cancel",
            "/v1/responses/../../sleep/cancel",
            "*",
            "",
        ]
        for target in targets:
            for request in (post(target, BODY), f"GET {target} HTTP/1.1\r\nhost: r\r\n\r\n".encode("latin-1")):
                async with connected(at.router) as client:
                    answer = await client.ask(request)
                    assert answer.status < 500, (target, request[:4])
                    assert answer.status not in (301, 302, 307, 308)
        assert trap.connections == 0
        assert {target.partition("?")[0] for target in at.engine.targets} <= KNOWN
        assert (await at.chat()).status_code == 200


SMALL = b'{"model":"stub","messages":[]}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMALL), SMALL)
LENGTH = b"content-length: %d\r\n\r\n" % len(SMALL) + SMALL
SECOND = b"GET /sleep HTTP/1.1\r\nhost: r\r\n\r\n"
SMUGGLING = {
    "length and coding": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
    "coding and length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + CHUNKED,
    "two lengths": b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    "the same length twice": b"content-length: %d\r\n" % len(SMALL) + LENGTH,
    "a list of lengths": b"content-length: 5, 5\r\n\r\nabcde",
    "signed length": b"content-length: +5\r\n\r\nabcde",
    "hex length": b"content-length: 0x5\r\n\r\nabcde",
    "length with a gap": b"content-length: 1 2\r\n\r\n" + b"a" * 12,
    "empty length": b"content-length:\r\n\r\nabcde",
    "length beyond 64 bits": b"content-length: 99999999999999999999999\r\n\r\nabcde",
    "space before the colon": b"content-length : 5\r\n\r\nabcde",
    "coding twice": b"transfer-encoding: chunked, chunked\r\n\r\n" + CHUNKED,
    "coding in two fields": b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
    "coding and identity": b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n" + CHUNKED,
    "identity and coding": b"transfer-encoding: identity, chunked\r\n\r\n" + CHUNKED,
    "another coding first": b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "an unknown coding": b"transfer-encoding: xchunked\r\n\r\n" + CHUNKED,
    "a coding with a parameter": b"transfer-encoding: chunked;q=1\r\n\r\n" + CHUNKED,
    "a quoted coding": b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKED,
    "a vertical tab": b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKED,
    "a space before the coding's colon": b"transfer-encoding : chunked\r\n\r\n" + CHUNKED,
    "a folded value": b"x: a\r\n b\r\n" + LENGTH,
    "a folded coding": b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKED,
    "a field that begins with a space": b" content-length: 5\r\n\r\nabcde",
    "bare line feeds": b"x: y\nz: w\r\n" + LENGTH,
    "a bare line feed at the head's end": b"content-length: 2\r\n\n{}",
    "a bare carriage return": b"x: a\rtransfer-encoding: chunked\r\n" + LENGTH,
    "a zero byte": b"x: a\0b\r\n" + LENGTH,
    "a control character in a name": b"x\x01: b\r\n" + LENGTH,
    "a line without a colon": b"xyz\r\n" + LENGTH,
    "two hosts": b"host: other\r\n" + LENGTH,
    "a chunk beyond 64 bits": b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a negative chunk": b"transfer-encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "a hex prefix": b"transfer-encoding: chunked\r\n\r\n0x" + CHUNKED,
    "a space before the chunk's size": b"transfer-encoding: chunked\r\n\r\n " + CHUNKED,
    "a chunk without a size": b"transfer-encoding: chunked\r\n\r\n\r\n" + CHUNKED,
    "chunks by line feeds": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED.replace(b"\r\n", b"\n"),
    "a line feed in an extension": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED.replace(b"\r\n", b";a\nb\r\n", 1),
    "a zero byte in an extension": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED.replace(b"\r\n", b";\0\r\n", 1),
    "a chunk longer than its size": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED.replace(b"}\r\n", b"}XX\r\n", 1),
    "a length in the trailer": b"transfer-encoding: chunked\r\n\r\n" + CHUNKED[:-2] + b"content-length: 9\r\n\r\n",
}


@pytest.mark.parametrize("kind", SMUGGLING)
async def test_sec_06_a_second_request_cannot_be_smuggled_in_the_first(kind: str) -> None:
    async with field(serve) as at, connected(at.router) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n" + SMUGGLING[kind] + SECOND)
        async with asyncio.timeout(10):
            # The router closes the connection itself: whatever it made of the request, nothing follows on it.
            answered = await client.closed()
        statuses = [int(part[:3]) for part in answered.split(b"HTTP/1.1 ")[1:]]
        assert len(statuses) <= 1
        assert all(400 <= status < 500 for status in statuses)
        assert at.calls == 0
        assert "/sleep" not in at.engine.targets
        assert (await at.chat()).status_code == 200


@pytest.mark.parametrize("line", [b"POST /v1/chat/completions HTTP/1.0", b"POST /v1/chat/completions HTTP/1.1"])
async def test_sec_06_old_and_hostless_requests_are_not_read_by_guesswork(line: bytes) -> None:
    """A transfer coding in HTTP/1.0, and no host in HTTP/1.1."""
    async with field(serve) as at, connected(at.router) as client:
        await client.send(line + b"\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED)
        async with asyncio.timeout(10):
            assert b"400" in (await client.closed()).splitlines()[0]
        assert at.calls == 0


async def test_sec_06_an_offer_to_upgrade_is_passed_over_and_its_body_is_read() -> None:
    offer = ("connection: upgrade, http2-settings", "Upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
    async with field(serve) as at, connected(at.router) as client:
        for _ in range(2):
            assert (await client.ask(post(CHAT, BODY, *offer))).status == 200
        for call in at.engine.calls:
            assert call.body == BODY
            assert {name for name, _ in call.request.headers} & {b"upgrade", b"http2-settings"} == set()


async def test_sec_06_an_offer_to_upgrade_that_comes_in_pieces_is_refused() -> None:
    async with field(serve) as at, connected(at.router) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nconnection: upgrade\r\n")
        await asyncio.sleep(0.05)
        await client.send(b"upgrade: h2c\r\n" + LENGTH + SECOND)
        async with asyncio.timeout(10):
            assert b"400" in (await client.closed()).splitlines()[0]
        assert at.calls == 0


async def test_sec_01_an_absolute_target_is_not_dialled() -> None:
    async with RawServer(canary) as trap, field(serve) as at, connected(at.router) as client:
        target = f"{trap.url}{CHAT}".encode()
        assert (await client.ask(post(CHAT, BODY).replace(CHAT.encode(), target, 1))).status == 200
        assert trap.connections == 0
        assert at.calls == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_sec_08_the_cache_salt_reaches_every_leg_unchanged(stream: bool) -> None:
    salt = 'ten "ant" \u00fc'
    async with pd_field([serve], [serve]) as at:
        await at.chat("long " * 100, cache_salt=salt, stream=stream)
        body = {"model": "stub", "prompt": "long " * 100, "cache_salt": salt, "stream": stream}
        await at.client.post(COMPLETIONS, json=body)
        for engine in at.engines:
            assert [call.json["cache_salt"] for call in engine.calls] == [salt, salt]
    async with field(serve) as at:
        await at.chat(cache_salt=salt, stream=stream)
        assert [call.json["cache_salt"] for call in at.engine.calls] == [salt]
