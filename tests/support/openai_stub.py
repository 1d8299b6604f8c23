"""A stand-in for an OpenAI server on a thread: streams fixed answers, remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub-model"


class OpenAIStub(ThreadingHTTPServer):
    """`cut_every`: each so manyth answer ends in the middle, without a finish reason. 0: never."""

    daemon_threads = True

    def __init__(self, *, cut_every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cut_every = cut_every
        self.asked: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def cached_tokens(number: int) -> int:
    """What the stub's answer number `number` says was cached, of 100 prompt tokens."""
    return 50 if number % 2 else 100


def chunks(number: int, answer: str) -> Iterator[bytes]:
    """The event stream of one answer, a word a chunk."""
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "model": MODEL}
    words = [word + " " for word in answer.split()]

    def event(**fields: Any) -> bytes:
        return b"data: " + json.dumps({**head, **fields}).encode() + b"\n\n"

    yield event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for word in words:
        yield event(choices=[{"index": 0, "delta": {"content": word}, "finish_reason": None}])
    yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
    details = {"cached_tokens": cached_tokens(number)}
    yield event(
        choices=[],
        usage={"prompt_tokens": 100, "completion_tokens": len(words), "prompt_tokens_details": details},
    )
    yield b"data: [DONE]\n\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAIStub

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
        self._head("application/json", {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(asked)
            number = len(self.server.asked)
        self._head("text/event-stream", {"Transfer-Encoding": "chunked"})
        cut = self.server.cut_every and number % self.server.cut_every == 0
        for index, chunk in enumerate(chunks(number, f"answer number {number}")):
            if cut and index == 2:
                break
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": content_type, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """A test's output is not for access lines."""


@contextmanager
def openai_stub(*, cut_every: int = 0) -> Iterator[OpenAIStub]:
    """Serving, until the block ends."""
    with OpenAIStub(cut_every=cut_every) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
