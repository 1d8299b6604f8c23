"""The ASGI application of one simulated engine: routing, the API key, and the last line of defence."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from loadtest.simulator.api import admin, anthropic, ops, pooling, responses, tokens
from loadtest.simulator.api.chat import chat_completions
from loadtest.simulator.api.completions import completions
from loadtest.simulator.api.exchange import ApiError, Exchange, Receive, Scope, Send
from loadtest.simulator.driver import ClientGone
from loadtest.simulator.node import SimEngine

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
PathHandler = Callable[..., Coroutine[Any, Any, None]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/chat/completions": {"POST": chat_completions},
    "/v1/completions": {"POST": completions},
    "/v1/chat/completions/render": {"POST": tokens.render_chat},
    "/v1/completions/render": {"POST": tokens.render_completions},
    "/inference/v1/generate": {"POST": tokens.generate},
    "/v1/responses": {"POST": responses.create_response},
    "/v1/messages": {"POST": anthropic.create_message},
    "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
    "/v1/embeddings": {"POST": pooling.embeddings},
    "/v1/rerank": {"POST": pooling.rerank},
    "/v2/rerank": {"POST": pooling.rerank},
    "/rerank": {"POST": pooling.rerank},
    "/v1/score": {"POST": pooling.score},
    "/score": {"POST": pooling.score},
    "/pooling": {"POST": pooling.pooling},
    "/classify": {"POST": pooling.classify},
    "/tokenize": {"POST": pooling.tokenize},
    "/detokenize": {"POST": pooling.detokenize},
    "/v1/audio/transcriptions": {"POST": pooling.transcriptions},
    "/v1/audio/translations": {"POST": pooling.transcriptions},
    "/v1/audio/speech": {"POST": pooling.speech},
    "/v1/models": {"GET": ops.models},
    "/v1/load_lora_adapter": {"POST": ops.load_lora_adapter},
    "/v1/unload_lora_adapter": {"POST": ops.unload_lora_adapter},
    "/health": {"GET": ops.health},
    "/ping": {"GET": ops.health, "POST": ops.health},
    "/version": {"GET": ops.version},
    "/load": {"GET": ops.load},
    "/metrics": {"GET": ops.metrics},
    "/kv_event_sources": {"GET": ops.kv_event_sources},
    "/reset_prefix_cache": {"POST": ops.reset_prefix_cache},
    "/pause": {"POST": ops.pause},
    "/resume": {"POST": ops.resume},
    "/is_paused": {"GET": ops.is_paused},
    "/sleep": {"POST": ops.sleep},
    "/wake_up": {"POST": ops.wake_up},
    "/is_sleeping": {"GET": ops.is_sleeping},
    "/sim/faults": {"GET": admin.get_faults, "POST": admin.set_faults},
    "/sim/requests": {"GET": admin.recent_requests},
}

PATTERNS: tuple[tuple[str, tuple[str, ...], PathHandler], ...] = (
    ("GET", ("v1", "responses", "*"), responses.get_response),
    ("POST", ("v1", "responses", "*", "cancel"), responses.cancel_response),
    ("GET", ("sim", "requests", "*"), admin.one_request),
    ("POST", ("sim", "kv", "*", "*", "read"), admin.kv_read),
    ("POST", ("sim", "kv", "*", "*", "release"), admin.kv_release),
)


class SimApp:
    """Answers every request of one engine."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self._routes = ROUTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        ex = Exchange(self._engine, scope, receive, send)
        handler = self._find(ex)
        try:
            await ex.read()
        except ClientGone:
            return
        except ApiError as error:
            await ex.respond(error.status, error.body)
            return
        await ex.serve(handler)

    def _find(self, ex: Exchange) -> Handler:
        if not self._allowed(ex):
            return _unauthorized
        methods = self._routes.get(ex.path)
        if methods is not None:
            return methods.get(ex.method) or _wrong_method(next(iter(methods)))
        raw = ex.raw_path.split("/")[1:]
        for method, pattern, handler in PATTERNS:
            if method != ex.method or len(raw) != len(pattern):
                continue
            if all(want in ("*", have) for want, have in zip(pattern, raw, strict=True)):
                names = [unquote(have) for want, have in zip(pattern, raw, strict=True) if want == "*"]
                return _bound(handler, names)
        return _not_found

    def _allowed(self, ex: Exchange) -> bool:
        """vLLM asks for its key on /v1 alone."""
        key = self._engine.config.api_key
        if key is None or not ex.path.startswith("/v1"):
            return True
        given = ex.header(b"authorization") or ""
        return hmac.compare_digest(given.encode("latin-1"), f"Bearer {key}".encode())


def _bound(handler: PathHandler, names: list[str]) -> Handler:
    async def call(ex: Exchange) -> None:
        await handler(ex, *names)

    return call


async def _unauthorized(ex: Exchange) -> None:
    await ex.json({"error": "Unauthorized"}, 401)


async def _not_found(ex: Exchange) -> None:
    await ex.json({"detail": "Not Found"}, 404)


def _wrong_method(allowed: str) -> Handler:
    async def answer(ex: Exchange) -> None:
        await ex.respond(405, b'{"detail":"Method Not Allowed"}', headers=((b"allow", allowed.encode()),))

    return answer
