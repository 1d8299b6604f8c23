"""Secrets and prompts stay out of everything that people and machines read about the router."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.cli import run
from router.observability.logs import configure
from tests.support.field import CHAT, COMPLETIONS, ESTIMATED
from tests.support.rawclient import connected
from tests.support.router import RunningRouter, client_of, running_router
from tests.support.stub_engine import Call, Script, StubEngine, completed, serve, stubs

MARK = "mArKeD"
"""Whatever holds this is a secret or part of a prompt."""
CLIENT, ADMIN, ENGINE, REDIS, SALT = (f"{MARK}-{name}-key-0123456789" for name in ("c", "a", "e", "r", "s"))
BODY = {"model": "stub", "messages": [{"role": "user", "content": f"{MARK} tell nobody"}], "user": f"{MARK}-user"}


async def refuses(call: Call) -> None:
    await call.answer({"error": {"message": f"{MARK} in an engine's body", "code": 400}}, 400)


async def fails(call: Call) -> None:
    await call.answer({"error": {"message": f"{MARK} in an engine's body", "code": 500}}, 500)


async def resets(call: Call) -> None:
    call.peer.reset()


async def malformed(call: Call) -> None:
    await call.peer.send(f"HTTP/1.1 {MARK} broken\r\n{MARK}\r\n\r\n".encode())


async def cut(call: Call) -> None:
    await call.head(200, ((b"content-type", b"text/event-stream"),), length=9999)
    await call.peer.send(f'data: {{"choices":[{{"delta":{{"content":"{MARK}"}}}}]}}\n\n'.encode() * 2)
    call.peer.reset()


async def stream_error(call: Call) -> None:
    await call.stream(f'data: {{"error": {{"message": "{MARK}"}}}}\n\n'.encode())


async def speaks(call: Call) -> None:
    await call.answer(completed(MARK))


@pytest.fixture
def logged() -> Any:
    """Everything that is logged at DEBUG, formatted as the router formats it, tracebacks included."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    configure("debug", "json")
    text = io.StringIO()
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(text)
    yield text
    root.handlers[:] = before
    root.setLevel(level)


@asynccontextmanager
async def kept_secret(engines: list[StubEngine], folder: Path, **flags: Any) -> AsyncIterator[RunningRouter]:
    specs = [{"url": engine.url, "api_key": ENGINE} for engine in engines]
    async with running_router(
        specs,
        server__api_keys=[{"key": CLIENT, "name": "one"}],
        server__admin_keys=[{"key": ADMIN, "name": "ops"}],
        server__tenant_salt_secret=SALT,
        server__access_log=True,
        log__requests=str(folder / "requests.jsonl"),
        retries__continue_streams=True,
        **{**ESTIMATED, **flags},
    ) as router:
        yield router


async def everything_shown(router: RunningRouter, client: httpx.AsyncClient) -> str:
    admin = {"authorization": f"Bearer {ADMIN}"}
    pages = ["/metrics", "/debug/endpoints", "/debug/decisions", "/debug/slots", "/admin/endpoints", "/ready"]
    shown = [(await client.get(page, headers=admin)).text for page in (*pages, "/openapi.json")]
    shown.append((await client.post("/debug/explain", json=BODY, headers=admin)).text)
    return "\n".join(shown)


@pytest.mark.parametrize(
    "script", [serve, refuses, fails, resets, malformed, cut, stream_error, speaks], ids=lambda script: script.__name__
)
async def test_an_engine_that_fails_in_any_way_brings_nothing_out(
    script: Script, logged: io.StringIO, tmp_path: Path
) -> None:
    async with (
        stubs(script, script) as engines,
        kept_secret(engines, tmp_path) as router,
        client_of(router) as client,
    ):
        own = {"authorization": f"Bearer {CLIENT}", "cookie": MARK, "x-api-key": CLIENT}
        for stream in (False, True):
            for path, body in ((CHAT, BODY), (COMPLETIONS, {"model": "stub", "prompt": MARK})):
                try:
                    await client.post(path, json={**body, "stream": stream}, headers=own)
                except httpx.TransportError:
                    continue
        shown = await everything_shown(router, client)
    assert MARK not in shown
    assert MARK not in logged.getvalue()
    assert MARK not in (tmp_path / "requests.jsonl").read_text()
    assert "kvrouter.access" in logged.getvalue()


async def test_a_client_that_does_anything_wrong_is_not_quoted(logged: io.StringIO, tmp_path: Path) -> None:
    own = {"authorization": f"Bearer {CLIENT}"}
    bodies = [
        f'{{"model": "stub", "messages": {MARK}'.encode(),
        f'["{MARK}"]'.encode(),
        f'{{"model": "stub", "messages": "{MARK}", "n": "{MARK}", "max_tokens": "{MARK}"}}'.encode(),
        f'{{"model": ["{MARK}"], "messages": [{{"{MARK}": 1}}]}}'.encode(),
        MARK.encode() + b"\xff",
    ]
    async with stubs(serve) as engines, kept_secret(engines, tmp_path) as router, client_of(router) as client:
        answers = [await client.post(CHAT, content=body, headers=own) for body in bodies]
        wrong = [
            await client.post(CHAT, json=BODY, headers={"authorization": f"Bearer {MARK}"}),
            await client.post(CHAT, json=BODY, headers={"x-api-key": MARK}),
            await client.post(CHAT, json=BODY),
            await client.post("/admin/drain", headers={"authorization": f"Bearer {MARK}"}),
        ]
        async with connected(router) as raw:
            await raw.send(f"POST {CHAT} HTTP/1.1\r\nhost: r\r\n{MARK}\r\n\r\n".encode())
            refused = await raw.closed()
        gone = asyncio.create_task(client.post(CHAT, json=BODY, headers=own))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        shown = await everything_shown(router, client)
    assert [answer.status_code for answer in wrong] == [401, 401, 401, 401]
    assert MARK not in "".join(answer.text for answer in (*answers[:2], *wrong))
    assert MARK.encode() not in refused
    assert MARK not in shown
    assert MARK not in logged.getvalue()


async def test_a_fault_of_the_routers_own_logs_its_place_and_not_the_request(
    logged: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stubs(serve) as engines, kept_secret(engines, tmp_path) as router, client_of(router) as client:
        monkeypatch.setattr(router.app.director, "_decide", lambda *_: 1 / 0)
        answer = await client.post(CHAT, json=BODY, headers={"authorization": f"Bearer {CLIENT}"})
    assert answer.status_code == 500
    assert MARK not in answer.text
    assert "ZeroDivisionError" in logged.getvalue()
    assert MARK not in logged.getvalue()


@pytest.mark.parametrize("mistake", [{}, {"server": {"port": "x"}}, {"wibble": 1}])
def test_a_configuration_is_printed_and_complained_of_without_its_secrets(
    mistake: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "endpoints": [{"url": "http://127.0.0.1:8001", "api_key": ENGINE}],
        "server": {
            "api_keys": [CLIENT, {"key": CLIENT + "2", "name": "web"}],
            "admin_keys": [ADMIN],
            "tenant_salt_secret": SALT,
            **mistake.get("server", {}),
        },
        "upstream": {"api_key": ENGINE},
        "redis": {"url": f"redis://user:{REDIS}@127.0.0.1:1/0"},
        **{key: value for key, value in mistake.items() if key != "server"},
    }
    (tmp_path / "kv.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    code = run(["serve", "--config", str(tmp_path / "kv.yaml"), "--print-config"])
    shown = capsys.readouterr()
    assert code == (2 if mistake else 0)
    assert shown.out or shown.err
    assert MARK not in shown.out + shown.err
