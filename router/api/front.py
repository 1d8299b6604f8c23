"""The front: raw ASGI for the inference paths, ahead of FastAPI, which gets everything else.

Owns what is cheap to check before the journey begins (key, method, size, lifecycle), turning a scope and a body into
an `InferenceRequest`, and turning whatever stops the journey into an answer. No middleware stands on these paths.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from router.api.callers import TrustedPeers, allowed_priority, caller, steering_of
from router.api.exchange import ClientGone, Exchange, Receive, Send
from router.api.gate import Gate, Surface
from router.api.isolation import TenantSalt
from router.api.keys import Key, KeyRing
from router.api.lifecycle import Lifecycle
from router.core import Api, InferenceRequest
from router.errors import InvalidRequest, MethodNotAllowed, RouterError, UnsupportedEncoding
from router.ports import Reply
from router.wire.deadline import allowed_s
from router.wire.headers import accepted_request_id, request_headers
from router.wire.kv_transfer import strip_generate_params, strip_transfer_params
from router.wire.openai import GENERATE_PATH, NOTHING, parse_request
from router.wire.priority import with_priority
from router.wire.splice import splice

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

_UNSENDABLE = re.compile(rb"[\x00-\x20\x7f]")
"""Bytes that stand in no request line, which the parser may still let through in a query."""

_BY_FIELD = (("messages", "/v1/chat/completions"), ("input", "/v1/responses"), ("prompt", "/v1/completions"))

_STORED_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_\-]{1,128})(/cancel)?")
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


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_body_bytes: int
    forward_authorization: bool = False
    trusted_headers: frozenset[bytes] = frozenset()
    trust_kv_transfer_params: bool = False
    trusted_peers: TrustedPeers = TrustedPeers()
    strip_untrusted_priority: bool = True
    """Where there are rights at all, i.e. keys or trusted peers."""
    tenant_salt: TenantSalt | None = None
    """None: tenants share what engines have cached."""


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
        self._clock = clock
        self._gate = gate or Gate(KeyRing(), lambda: self.keys, loopback=True, surface=surface)
        self._inference = surface is not Surface.ADMINISTRATION
        self._explains = surface is not Surface.CLIENTS

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path: str = scope["path"]
        if path.endswith("/"):
            # Answered in place: a redirect makes some clients drop the body or their key.
            path = path.rstrip("/")
        api = PATHS.get(path)
        if path == EXPLAIN_PATH and self._explains and scope["method"] == "POST":
            await self._exchange(scope, receive, send, path, Api.OTHER, None)
            return
        if not self._inference:
            await self._rest(scope, receive, send)
            return
        if api is not None:
            if scope["method"] != "OPTIONS":
                await self._exchange(scope, receive, send, path, api, None)
                return
        elif path.startswith("/v1/responses/"):
            stored = _STORED_RESPONSE.fullmatch(path)
            if stored is not None:
                await self._exchange(scope, receive, send, path, Api.OTHER, stored.group(1))
                return
        await self._rest(scope, receive, send)

    async def _exchange(
        self, scope: Any, receive: Receive, send: Send, path: str, api: Api, response_id: str | None
    ) -> None:
        arrived_at = self._clock()
        exchange = Exchange(receive, send)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given_id, declared, encoding = _peek(headers)
        exchange.request_id = accepted_request_id(given_id) or uuid.uuid4().hex
        try:
            key = self._gate.admit(headers) if path == EXPLAIN_PATH else self.keys.authorize(headers)
            method: str = scope["method"]
            if method != "POST" and not (response_id is not None and method in ("GET", "DELETE")):
                raise MethodNotAllowed(f"{method} is not allowed on {path}; use POST.", allow="POST")
            if encoding is not None:
                raise UnsupportedEncoding(
                    "The body is encoded (Content-Encoding), which engines do not read either: send it as it is."
                )
            self._lifecycle.enter(exchange)
            try:
                exchange.fields = self._limits.enter(key.name)
                try:
                    body = await exchange.read_body(declared, self.settings.max_body_bytes)
                    await self._travel(scope, exchange, path, api, response_id, body, arrived_at, key)
                finally:
                    self._limits.leave(key.name)
            finally:
                self._lifecycle.leave(exchange)
        except ClientGone:
            return
        except RouterError as error:
            await exchange.fail(error)
        except Exception:
            logger.exception("request %s failed in the router", exchange.request_id)
            await exchange.fail(RouterError("The router failed while serving this request; its log tells why."))

    async def _travel(
        self,
        scope: Any,
        exchange: Exchange,
        path: str,
        api: Api,
        response_id: str | None,
        body: bytes,
        arrived_at: float,
        key: Key,
    ) -> None:
        explains = path == EXPLAIN_PATH
        if explains:
            path, api = _explained(scope["query_string"], body)
        request = self._read(scope, exchange.request_id or "", path, api, body, arrived_at, key)
        if explains:
            await exchange.attend(self._journey.explain(request, exchange))
        elif response_id is None:
            await exchange.attend(self._journey.serve(request, exchange))
        else:
            await exchange.attend(self._journey.serve_stored(request, response_id, exchange))

    def _read(
        self, scope: Any, request_id: str, path: str, api: Api, body: bytes, arrived_at: float, key: Key
    ) -> InferenceRequest:
        settings = self.settings
        headers = scope["headers"]
        trusted = key.trusted or _from(scope, settings.trusted_peers)
        forwarded, routing = request_headers(
            headers,
            forward_authorization=settings.forward_authorization,
            trusted=settings.trusted_headers,
            steering=steering_of(key, trusted),
        )
        query: bytes = scope["query_string"]
        if query and _UNSENDABLE.search(query) is not None:
            raise InvalidRequest("The query holds a space or a control byte: percent-encode it.")
        parsed = (
            parse_request(api, path, body, content_type=_content_type(headers))
            if body or api is not Api.OTHER or path == GENERATE_PATH
            else NOTHING
        )
        if not settings.trust_kv_transfer_params:
            if path == GENERATE_PATH:
                body = strip_generate_params(body)
            elif parsed.has_kv_transfer_params:
                body = strip_transfer_params(body)
        if parsed.has_priority and not trusted and settings.strip_untrusted_priority:
            body = self._limited(body, parsed.priority, key)
        asking = caller(key, trusted, routing, parsed.priority)
        within_s = allowed_s(routing) if routing else None
        salt = parsed.cache_salt
        if settings.tenant_salt is not None and api is not Api.OTHER:
            salt = settings.tenant_salt(asking.tenant, salt)
            body = splice(body, set={"cache_salt": msgspec.json.encode(salt)})
        return InferenceRequest(
            request_id=request_id,
            api=api,
            path=f"{path}?{query.decode('latin-1')}" if query else path,
            method=scope["method"],
            body=body,
            headers=forwarded,
            routing_headers=routing,
            caller=asking,
            model=parsed.model,
            stream=parsed.stream,
            max_tokens=parsed.max_tokens,
            n=parsed.n,
            include_usage=parsed.include_usage,
            cache_salt=salt,
            fields=parsed.fields,
            arrived_at=arrived_at,
            deadline_at=None if within_s is None else arrived_at + within_s,
        )

    def _limited(self, body: bytes, asked: int | None, key: Key) -> bytes:
        """`body` with no more priority (`asked` is its number, None what cannot be read as one) than `key` may have."""
        if self.keys.open and not self.settings.trusted_peers:
            return body
        allowed = None if asked is None else allowed_priority(key, False, -asked)
        if allowed is not None and asked == -allowed:
            return body
        return with_priority(body, None if allowed is None else -allowed)


def _from(scope: Any, peers: TrustedPeers) -> bool:
    client = scope.get("client")
    return client is not None and peers.hold(client[0])


def _explained(query: bytes, body: bytes) -> tuple[str, Api]:
    """The path and API that a body is meant for: as the query says, else as its fields suggest."""
    named = parse_qs(query.decode("latin-1")).get("path", [""])[0]
    if not named:
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            fields = None
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


def _content_type(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"content-type":
            return value.decode("latin-1")
    return "application/json"
