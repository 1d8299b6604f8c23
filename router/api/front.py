"""The front: raw ASGI for the inference paths, ahead of FastAPI, which gets everything else.

Owns what is cheap to check before the journey begins (key, method, size, lifecycle), turning whatever stops the journey
into an answer, and telling of the answers that no journey tells of. No middleware stands on these paths.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

import msgspec

from router.api.exchange import ClientGone, Exchange, Receive, Send
from router.api.gate import Gate, Surface
from router.api.http_protocol import REFUSED_WITH
from router.api.keys import Key, KeyRing
from router.api.lifecycle import Lifecycle
from router.api.reading import FrontSettings, read_request
from router.core import Api, InferenceRequest
from router.errors import InvalidRequest, MethodNotAllowed, NotFound, RouterError, UnsupportedEncoding
from router.observability.events import EXPLAIN, Answered, AnswerObserver, Outcome, of_refusal
from router.ports import Reply
from router.wire.headers import accepted_request_id
from router.wire.openai import GENERATE_PATH

logger = logging.getLogger(__name__)

PATHS: dict[str, Api] = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/chat/completions/render": Api.OTHER,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/completions/render": Api.OTHER,
    GENERATE_PATH: Api.OTHER,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.OTHER,
    "/v1/embeddings": Api.OTHER,
    "/v1/rerank": Api.OTHER,
    "/v2/rerank": Api.OTHER,
    "/rerank": Api.OTHER,
    "/v1/score": Api.OTHER,
    "/score": Api.OTHER,
    "/pooling": Api.OTHER,
    "/classify": Api.OTHER,
    "/tokenize": Api.OTHER,
    "/detokenize": Api.OTHER,
    "/v1/audio/transcriptions": Api.OTHER,
    "/v1/audio/translations": Api.OTHER,
    "/v1/audio/speech": Api.OTHER,
}
"""POST paths that reach an engine, with how their prompt is read."""

EXPLAIN_PATH = "/debug/explain"
"""POST a request's body here to be told what would be decided; ``?path=`` names the path it is meant for."""

_BY_FIELD = (("messages", "/v1/chat/completions"), ("input", "/v1/responses"), ("prompt", "/v1/completions"))

_STORED_RESPONSES = "/v1/responses/"
_STORED_RESPONSE = re.compile(rf"{_STORED_RESPONSES}([A-Za-z0-9_\-]{{1,128}})(/cancel)?")
"""The id goes into an upstream path: nothing but a plain token is let through."""


class Journey(Protocol):
    """What the front needs of `router.director`."""

    async def serve(self, request: InferenceRequest, reply: Reply) -> None: ...

    async def serve_stored(self, request: InferenceRequest, response_id: str, reply: Reply) -> None: ...

    async def explain(self, request: InferenceRequest, reply: Reply) -> None: ...


class RequestLimits(Protocol):
    """What each API key may ask for (`router.flowcontrol.key_limits`)."""

    def enter(self, key: str) -> list[tuple[bytes, bytes]]:
        """Lets a request in, or raises `RouterError`. Returns header fields for its answer."""
        ...

    def leave(self, key: str) -> None: ...


class Unlimited:
    """Everybody may ask for as much as they like."""

    def enter(self, key: str) -> list[tuple[bytes, bytes]]:
        return []

    def leave(self, key: str) -> None: ...


class Front:
    """ASGI application. `keys` and `settings` may be replaced at run time."""

    def __init__(
        self,
        *,
        rest: Callable[[Any, Receive, Send], Any],
        journey: Journey,
        lifecycle: Lifecycle,
        keys: KeyRing,
        settings: FrontSettings,
        limits: RequestLimits | None = None,
        observer: AnswerObserver,
        clock: Callable[[], float],
        gate: Gate | None = None,
        surface: Surface = Surface.ALL,
    ) -> None:
        """`rest` is the ASGI application of every other path; `gate` asks who may have a decision explained, by default
        whoever may use the router."""
        self._rest = rest
        self._journey = journey
        self._lifecycle = lifecycle
        self.keys = keys
        self.settings = settings
        self._limits = limits or Unlimited()
        self._observer = observer
        self._clock = clock
        self._gate = gate or Gate(KeyRing(), lambda: self.keys, loopback=True, surface=surface)
        self._inference = surface is not Surface.ADMINISTRATION
        self._explains = surface is not Surface.CLIENTS

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        asked = self._asked(scope) if scope["type"] == "http" else None
        if asked is None:
            await self._rest(scope, receive, send)
        else:
            await self._exchange(scope, receive, send, asked)

    def _asked(self, scope: Any) -> _Asked | None:
        """None: it is no inference path."""
        path: str = scope["path"]
        if path.endswith("/"):
            # Answered in place: a redirect makes some clients drop the body or their key.
            path = path.rstrip("/")
        if self._inference:
            asked = _ASKED.get(path)
            if asked is not None:
                return asked
            if path.startswith(_STORED_RESPONSES):
                stored = _STORED_RESPONSE.fullmatch(path)
                return _Asked(path, Api.OTHER, stored=True, response_id=None if stored is None else stored.group(1))
        if path == EXPLAIN_PATH and self._explains:
            return _Asked(path, Api.OTHER, explains=True)
        return None

    async def _exchange(self, scope: Any, receive: Receive, send: Send, asked: _Asked) -> None:
        exchange = Exchange(receive, send)
        ending = _Ending(self._clock())
        try:
            await self._answer(scope, exchange, asked, ending)
        except ClientGone:
            # The connection may have been refused while its body was awaited, and was told why.
            status: int | None = scope.get(REFUSED_WITH)
            ending.outcome = Outcome.CLIENT_GONE if status is None else Outcome.CLIENT_ERROR
            ending.status = status
        except RouterError as error:
            ending.outcome, ending.status = of_refusal(error.status), error.status
            await exchange.fail(error)
        except Exception:
            logger.exception("request %s failed in the router", exchange.request_id)
            ending.outcome, ending.status = Outcome.ROUTER_ERROR, RouterError.status
            await exchange.fail(RouterError("The router failed while serving this request; its log tells why."))
        finally:
            if not ending.reported:
                self._observer.on_answered(
                    Answered(
                        request_id=exchange.request_id or "",
                        api=EXPLAIN if asked.explains else asked.api.value,
                        outcome=ending.outcome,
                        status=ending.status,
                        e2e_s=self._clock() - ending.arrived_at,
                    )
                )

    async def _answer(self, scope: Any, exchange: Exchange, asked: _Asked, ending: _Ending) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given_id, declared, encoding = _peek(headers)
        exchange.request_id = accepted_request_id(given_id) or uuid.uuid4().hex
        method: str = scope["method"]
        if method == "OPTIONS":
            # Never with a key: a browser asks so before it sends one.
            raise MethodNotAllowed(f"{method} is not allowed on {asked.path[:200]}; use POST.", allow="POST")
        key = self._gate.admit(headers) if asked.explains else self.keys.authorize(headers)
        if asked.stored and asked.response_id is None:
            raise NotFound(f"There is nothing at {asked.path[:200]}; the paths served are listed at /docs.")
        if method != "POST" and not (asked.stored and method in ("GET", "DELETE")):
            raise MethodNotAllowed(f"{method} is not allowed on {asked.path}; use POST.", allow="POST")
        if encoding is not None:
            raise UnsupportedEncoding(
                "The body is encoded (Content-Encoding), which engines do not read either: send it as it is."
            )
        self._lifecycle.enter(exchange)
        try:
            exchange.fields = self._limits.enter(key.name)
            try:
                body = await exchange.read_body(declared, self.settings.max_body_bytes)
                await self._travel(scope, exchange, asked, body, ending, key)
            finally:
                self._limits.leave(key.name)
        finally:
            self._lifecycle.leave(exchange)

    async def _travel(
        self, scope: Any, exchange: Exchange, asked: _Asked, body: bytes, ending: _Ending, key: Key
    ) -> None:
        path, api = _explained(scope["query_string"], body) if asked.explains else (asked.path, asked.api)
        request = read_request(
            self.settings,
            scope,
            body,
            request_id=exchange.request_id or "",
            path=path,
            api=api,
            arrived_at=ending.arrived_at,
            key=key,
            anybody=self.keys.open,
        )
        if asked.explains:
            await exchange.attend(self._journey.explain(request, exchange))
            ending.outcome, ending.status = Outcome.OK, 200
            return
        ending.reported = True
        if asked.response_id is None:
            await exchange.attend(self._journey.serve(request, exchange))
        else:
            await exchange.attend(self._journey.serve_stored(request, asked.response_id, exchange))


class _Asked(NamedTuple):
    """What a path and its method stand for."""

    path: str
    api: Api
    stored: bool = False
    response_id: str | None = None
    """None of a stored response: its id is none."""
    explains: bool = False


_ASKED = {path: _Asked(path, api) for path, api in PATHS.items()}


class _Ending:
    """What is to be told of an exchange. A journey, once it has begun, reports by itself."""

    __slots__ = ("arrived_at", "outcome", "reported", "status")

    def __init__(self, arrived_at: float) -> None:
        self.arrived_at = arrived_at
        self.outcome = Outcome.CUT
        """Unless it is found how it ends: the server itself is ended."""
        self.status: int | None = None
        self.reported = False


def _explained(query: bytes, body: bytes) -> tuple[str, Api]:
    """The path and API that a body is meant for: as the query says, else as its fields suggest."""
    named = parse_qs(query.decode("latin-1")).get("path", [""])[0]
    if not named:
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidRequest(
                f"{EXPLAIN_PATH} takes the body of a request, and this one is not valid JSON: correct it."
            ) from None
        if isinstance(fields, dict):
            named = next((path for field, path in _BY_FIELD if field in fields), "")
    api = PATHS.get(named)
    if api is None:
        raise InvalidRequest(
            f"{EXPLAIN_PATH} takes the body of a request: JSON with messages, prompt or input, or ?path= to say which "
            "path it is meant for."
        )
    return named, api


def _peek(headers: list[tuple[bytes, bytes]]) -> tuple[bytes | None, int | None, bytes | None]:
    """(X-Request-Id, declared body length, the body's encoding if it has one)."""
    request_id = declared = encoding = None
    for name, value in headers:
        if name == b"x-request-id":
            request_id = value
        elif name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            encoding = value
    return request_id, declared, encoding
