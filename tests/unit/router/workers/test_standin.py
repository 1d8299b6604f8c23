from __future__ import annotations

import asyncio
import json
import socket
import ssl

import httpx
import pytest
import trustme

from router.workers.standin import StandIn


def bound() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("tls", [False, True])
async def test_everybody_is_told_that_nobody_serves(tls: bool) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with bound() as listener, bound() as admin:
        stand_in = StandIn([listener, admin], context if tls else None)
        await stand_in.start()
        await stand_in.start()
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            for at in (listener, admin):
                url = f"{'https' if tls else 'http'}://127.0.0.1:{at.getsockname()[1]}"
                answer = await client.post(f"{url}/v1/chat/completions", content=b"x" * 300_000)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["error"]["code"] == "no_worker"
                head = await client.head(f"{url}/ready")
                assert (head.status_code, head.content) == (503, b"")
        assert stand_in.serves
        stand_in.stop()


async def test_it_leaves_the_listener_to_who_comes_back() -> None:
    with bound() as listener:
        stand_in = StandIn([listener])
        await stand_in.start()
        stand_in.stop()
        stand_in.stop()
        assert not stand_in.serves
        with socket.create_connection(listener.getsockname(), timeout=10) as client:
            listener.setblocking(True)
            listener.settimeout(10)
            taken, _ = listener.accept()
            with taken:
                client.sendall(b"x")
                assert taken.recv(1) == b"x"
        await stand_in.start()
        async with httpx.AsyncClient(trust_env=False) as client_again:
            answer = await client_again.get(f"http://127.0.0.1:{listener.getsockname()[1]}/ready")
        assert json.loads(answer.content)["error"]["type"] == "service_unavailable"
        stand_in.stop()


async def test_one_that_is_stopped_while_it_starts_does_not_serve() -> None:
    with bound() as listener, bound() as admin:
        stand_in = StandIn([listener, admin])
        starting = asyncio.create_task(stand_in.start())
        await asyncio.sleep(0)
        stand_in.stop()
        await starting
        assert not stand_in.serves
        for at in (listener, admin):
            at.settimeout(10)
            with socket.create_connection(at.getsockname(), timeout=10):
                at.accept()[0].close()
