"""Drives an ASGI application without a server: one request in, its messages out, a client that may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class AsgiClient:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes | Iterable[bytes] = b"",
        leave_after: int | None = None,
        query: bytes = b"",
    ) -> Answer:
        """`leave_after`: the client is gone once so many messages have come (0: right after its body)."""
        pieces = [body] if isinstance(body, bytes) else list(body)
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for number, piece in enumerate(pieces):
            inbox.put_nowait({"type": "http.request", "body": piece, "more_body": number + 1 < len(pieces)})
        answer = Answer()
        if leave_after == 0:
            inbox.put_nowait({"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            answer.messages.append(message)
            if leave_after is not None and len(answer.messages) == leave_after:
                inbox.put_nowait({"type": "http.disconnect"})

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        await self._app(scope, inbox.get, send)
        return answer


class Answer:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        """The body was ended, so the server keeps the connection; else it closes it and the client sees a cut."""
        return bool(self.messages) and not self.messages[-1].get("more_body", True)
