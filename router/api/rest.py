"""The FastAPI application: everything that is not an inference path (models, operations, documentation).

The inference paths are listed in its OpenAPI schema too, but the front answers them before they get here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from router.api.front import PATHS
from router.api.keys import KeyRing
from router.api.lifecycle import Lifecycle
from router.core import EndpointState, Health
from router.errors import MethodNotAllowed, ModelNotFound, NotFound, RouterError
from router.pool.models import listing, merged

logger = logging.getLogger(__name__)


class View(Protocol):
    """What the operations pages show; implemented by `router.app`."""

    version: str

    def states(self) -> Sequence[EndpointState]: ...

    def describe(self) -> list[dict[str, Any]]:
        """Endpoints with health, models, metrics, in-flight and index state; no secrets."""
        ...

    def decisions(self) -> list[dict[str, Any]]:
        """The last decisions, newest first; no prompts."""
        ...

    def metrics_page(self) -> bytes | None:
        """None when metrics are switched off."""
        ...

    def keys(self) -> KeyRing: ...


class Readiness(NamedTuple):
    """What siblings add to ``/ready``."""

    draining: bool
    shown: Mapping[str, Any]


class Siblings(Protocol):
    """The other workers behind the same listener (`router.workers`)."""

    async def metrics(self, own: bytes) -> bytes:
        """The page of all of them; `own` when they cannot be asked in time."""
        ...

    async def readiness(self) -> Readiness: ...


class OnlyChild:
    """One process, no siblings."""

    async def metrics(self, own: bytes) -> bytes:
        return own

    async def readiness(self) -> Readiness:
        return Readiness(draining=False, shown={})


def create_rest(view: View, lifecycle: Lifecycle, metrics_content_type: str, siblings: Siblings) -> FastAPI:
    """The application, with its error handlers in OpenAI's shape."""
    app: FastAPI = FastAPIOffline(
        title="kvrouter",
        version=view.version,
        summary="A KV-cache-aware router for LLM inference.",
        redirect_slashes=False,
        redoc_url=None,
    )
    app.include_router(_operations(view, lifecycle, metrics_content_type, siblings))
    app.include_router(_models(view))
    app.include_router(_inference_schema())
    app.add_exception_handler(RouterError, _router_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _operations(view: View, lifecycle: Lifecycle, metrics_content_type: str, siblings: Siblings) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        """Liveness: the process answers. Says nothing about engines."""
        return _json({"status": "ok"})

    @routes.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        """Readiness: not draining, and some endpoint that may decode is not down."""
        family = await siblings.readiness()
        if lifecycle.draining or family.draining:
            return _json({"status": "draining"}, 503)
        able = sum(
            state.health in (Health.HEALTHY, Health.UNKNOWN) and state.endpoint.role.value != "prefill"
            for state in view.states()
        )
        shown = {"status": "ready" if able else "no endpoint", "endpoints": able, **family.shown}
        return _json(shown, 200 if able else 503)

    @routes.api_route("/version", methods=["GET", "HEAD"])
    async def version() -> Response:
        return _json({"version": view.version})

    @routes.api_route("/metrics", methods=["GET", "HEAD"])
    async def metrics() -> Response:
        page = view.metrics_page()
        if page is None:
            raise NotFound("Metrics are switched off (metrics.enabled).")
        return Response(await siblings.metrics(page), media_type=metrics_content_type)

    @routes.get("/debug/endpoints")
    async def endpoints(request: Request) -> Response:
        """Every endpoint as the router sees it now."""
        view.keys().authorize(request.headers.raw)
        return _json({"endpoints": view.describe()})

    @routes.get("/debug/decisions")
    async def decisions(request: Request) -> Response:
        """The last decisions, newest first: predicted and realised time to first token, outcome. No prompts."""
        view.keys().authorize(request.headers.raw)
        return _json({"decisions": view.decisions()})

    return routes


def _models(view: View) -> APIRouter:
    routes = APIRouter(tags=["models"])

    def authorized(request: Request) -> None:
        view.keys().authorize(request.headers.raw)

    @routes.get("/v1/models", dependencies=[Depends(authorized)])
    async def models() -> Response:
        """Models over all endpoints, aliases and LoRA adapters included."""
        return Response(listing(view.states()), media_type="application/json")

    @routes.get("/v1/models/{model:path}", dependencies=[Depends(authorized)])
    async def model(model: Annotated[str, "a model id; may hold slashes"]) -> Response:
        card = merged(view.states()).get(model)
        if card is None:
            raise ModelNotFound(f"The model `{model[:200]}` does not exist.", param="model")
        return Response(card.raw, media_type="application/json")

    return routes


_BODY = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
_ANSWER = {
    "200": {
        "description": "The engine's answer, byte for byte",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    "4XX": {"description": "The engine's or the router's refusal, in OpenAI's error shape"},
    "5XX": {"description": "The engine's or the router's failure, in OpenAI's error shape"},
}


def _inference_schema() -> APIRouter:
    """Routes for the schema; a request gets here only with a method that the front leaves alone."""
    routes = APIRouter(tags=["inference"])

    async def not_here(request: Request) -> Response:
        raise MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}; use POST.", allow="POST")

    stored = ["/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"]
    for path in PATHS:
        routes.add_api_route(
            path,
            not_here,
            methods=["POST"],
            name=_name("post", path),
            openapi_extra={"requestBody": _BODY, "responses": _ANSWER},
        )
    for path, methods in zip(stored, (["GET", "DELETE"], ["POST"]), strict=True):
        for method in methods:
            parameter = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
            routes.add_api_route(
                path,
                not_here,
                methods=[method],
                name=_name(method.lower(), path),
                openapi_extra={"parameters": [parameter], "responses": _ANSWER},
            )
    return routes


def _name(method: str, path: str) -> str:
    return method + "_" + path.strip("/").replace("/", "_").replace("{", "").replace("}", "")


def _answer(error: RouterError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers=headers)


async def _router_error(_request: Request, error: Exception) -> Response:
    return _answer(error if isinstance(error, RouterError) else RouterError("The router failed; its log tells why."))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path[:200]
    if status == 404:
        return _answer(NotFound(f"There is nothing at {path}; the paths served are listed at /docs."))
    if status == 405:
        allow = (getattr(error, "headers", None) or {}).get("Allow")
        return _answer(MethodNotAllowed(f"{request.method} is not allowed on {path}.", allow=allow))
    return _answer(RouterError("The request could not be served."))


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path[:200], exc_info=error)
    return _answer(RouterError("The router failed while serving this request; its log tells why."))
