"""A vLLM-like engine that answers as its script says, byte for byte, and writes down all it was sent.

What the router asks beside inference (health, models, metrics) is answered without the script, so that the router
sees an ordinary engine. A script gets one `Call` and answers it, wholly or badly:

    async def script(call: Call) -> None:
        await call.stream(token(0), token(1), DONE)

    async with StubEngine(script) as engine:
        ... engine.url, engine.calls, engine.aborted ...
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.rawserver import LINE_BYTES, Peer, PeerGone, RawRequest, RawServer

DONE = b"data: [DONE]\n\n"
SSE = ((b"content-type", b"text/event-stream; charset=utf-8"),)
JSON = ((b"content-type", b"application/json"),)
HAND_OFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "stub",
    "remote_block_ids": [1, 2, 3],
    "remote_host": "127.0.0.1",
    "remote_port": 1,
}
Fields = Iterable[tuple[bytes, bytes]]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def role() -> bytes:
    """The event that vLLM's chats begin with: it carries no content."""
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def token(number: int) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": f"t{number} "}, "finish_reason": None}]})


def finish(reason: str = "stop") -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}]})


def completed(text: str = "hello", reason: str = "stop", **more: Any) -> dict[str, Any]:
    """A chat's answer in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], **more}


def tokens_in(body: bytes) -> list[int]:
    """The numbers of the `token` events in a client's body, in order."""
    return [int(part.split(b" ", 1)[0]) for part in body.split(b'"content": "t')[1:]]


class Call:
    """One inference request, and the answering of it."""

    def __init__(self, engine: StubEngine, request: RawRequest, peer: Peer, number: int) -> None:
        self.engine = engine
        self.request = request
        self.peer = peer
        self.number = number
        """0 for the engine's first call."""
        self.aborted = False
        self.finished = False

    @property
    def target(self) -> str:
        return self.request.line.split(b" ")[1].decode("latin-1")

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def body(self) -> bytes:
        return self.request.body

    @property
    def json(self) -> Any:
        """The body's JSON object; empty when it is none."""
        try:
            value = json.loads(self.request.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def prefills(self) -> bool:
        """It is the prefill leg of a disaggregated request."""
        return b'"do_remote_decode":true' in self.request.body

    def values(self, name: str) -> list[str]:
        return [value.decode("latin-1") for value in self.request.values(name.encode())]

    async def head(self, status: int = 200, fields: Fields = SSE, *, length: int | None = None) -> None:
        """With `length` None a chunked body follows."""
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        lines = [b"HTTP/1.1 %d Stub" % status, *(name + b": " + value for name, value in fields), framing]
        await self.peer.send(b"\r\n".join(lines) + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.peer.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.peer.send(b"0\r\n\r\n")

    async def stream(self, *events: bytes, pause_s: float = 0.0) -> None:
        await self.head()
        for piece in events:
            await self.chunk(piece)
            await asyncio.sleep(pause_s)
        await self.end()

    async def answer(self, value: Any, status: int = 200, fields: Fields = JSON) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.head(status, fields, length=len(body))
        await self.peer.send(body)

    def reset(self) -> None:
        self.peer.reset()
        raise PeerGone

    async def hang(self) -> None:
        """Until the router closes the connection."""
        await asyncio.Event().wait()


Script = Callable[[Call], Awaitable[None]]


async def serve(call: Call) -> None:
    """The script of an engine in good health."""
    if call.prefills:
        await call.answer(completed(kv_transfer_params=HAND_OFF))
    elif call.json.get("stream"):
        await call.stream(role(), token(0), token(1), finish(), DONE)
    else:
        await call.answer(completed())


class StubEngine(RawServer):
    """`script` may be replaced while it runs; `models` are the ids it lists, `fields` what else their cards say."""

    def __init__(
        self,
        script: Script = serve,
        *,
        models: Iterable[str] = ("stub",),
        cards: Mapping[str, Any] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(self._converse, ssl_context=ssl_context)
        self.script = script
        self.models = list(models)
        self.cards = dict(cards or {})
        self.calls: list[Call] = []
        self.targets: list[str] = []
        """Every request target, control calls included."""
        self.health_hangs = False
        self.healthy = True
        self.metrics_page = b""

    @property
    def id(self) -> str:
        """The endpoint id that the router gives it."""
        return self.url.removeprefix("http://")

    @property
    def aborted(self) -> int:
        return sum(call.aborted for call in self.calls)

    @property
    def over(self) -> bool:
        """Nothing is being worked on."""
        return all(call.aborted or call.finished for call in self.calls)

    async def close_listener(self) -> None:
        """Refuses new connections and cuts those that stand."""
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def reopen_listener(self) -> None:
        """On the same port."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=LINE_BYTES)

    async def _converse(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            method, target = request.line.decode("latin-1").split(" ")[:2]
            self.targets.append(target)
            if method == "GET" and not target.startswith("/v1/responses/"):
                await self._control(peer, target)
            else:
                await self._infer(Call(self, request, peer, len(self.calls)))

    async def _control(self, peer: Peer, target: str) -> None:
        if target == "/health":
            if self.health_hangs:
                await asyncio.Event().wait()
            await _reply(peer, 200 if self.healthy else 503, b"")
        elif target == "/v1/models":
            cards = [{"id": model, "object": "model", **self.cards} for model in self.models]
            await _reply(peer, 200, json.dumps({"object": "list", "data": cards}).encode())
        elif target == "/metrics":
            await _reply(peer, 200, self.metrics_page)
        else:
            await _reply(peer, 404, b'{"detail":"Not Found"}')

    async def _infer(self, call: Call) -> None:
        self.calls.append(call)
        answering = asyncio.ensure_future(self.script(call))
        try:
            while not answering.done():
                await asyncio.wait([answering], timeout=0.02)
                if call.peer.gone_away and not answering.done():
                    call.aborted = True
                    raise PeerGone
            if isinstance(answering.exception(), PeerGone):
                call.aborted = True
            answering.result()
            call.finished = True
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)


async def _reply(peer: Peer, status: int, body: bytes) -> None:
    await peer.send(
        b"HTTP/1.1 %d Stub\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )


@asynccontextmanager
async def stubs(*scripts: Script | StubEngine) -> Any:
    """Running stub engines, one for each script."""
    running: list[StubEngine] = []
    try:
        for script in scripts:
            engine = script if isinstance(script, StubEngine) else StubEngine(script)
            running.append(await engine.__aenter__())
        yield running
    finally:
        for engine in running:
            await engine.__aexit__(None, None, None)
