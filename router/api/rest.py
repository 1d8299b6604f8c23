"""The FastAPI application: everything that is not an inference path (models, operations, documentation).

The inference paths are listed in its OpenAPI schema too, but the front answers them before they get here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from router.api import admin
from router.api.admin import ADMIN_GIVEN, AdminGiven, Obedience, Order, admitted
from router.api.exchange import Receive, Send
from router.api.front import PATHS
from router.api.gate import Surface
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

    def flow(self) -> dict[str, Any]:
        """Who waits for an endpoint with room, and what tenants were served."""
        ...

    def plan(self) -> dict[str, Any]:
        """What engines are needed, and why."""
        ...

    def wakes(self) -> bool:
        """Whether requests may wait for a pool without engines."""
        ...

    def metrics_page(self) -> bytes | None:
        """None when metrics are switched off."""
        ...

    def keys(self) -> KeyRing: ...

    def slots(self) -> dict[str, Any]:
        """What is in use and must be zero at rest, and what is kept."""
        ...


class Readiness(NamedTuple):
    """What siblings add to ``/ready``."""

    draining: bool
    shown: Mapping[str, Any]


class Siblings(Protocol):
    """The other workers behind the same listener (`router.workers`)."""

    async def metrics(self, own: bytes) -> bytes:
        """The page of all of them, `own` among it. Raises `WorkersSilent` when they cannot be asked in time."""
        ...

    async def readiness(self) -> Readiness: ...

    async def order(self, order: Order) -> Obedience:
        """Has all of them follow it, this process included."""
        ...

    async def reload(self) -> None:
        """Has the others load their configuration again."""
        ...


class OnlyChild:
    """One process, no siblings."""

    async def metrics(self, own: bytes) -> bytes:
        return own

    async def readiness(self) -> Readiness:
        return Readiness(draining=False, shown={})

    async def order(self, order: Order) -> Obedience:
        return Obedience(1, 1)

    async def reload(self) -> None: ...


class Given(NamedTuple):
    """What routes work with."""

    view: View
    lifecycle: Lifecycle
    siblings: Siblings
    metrics_content_type: str
    admin: AdminGiven
    surface: Surface = Surface.ALL
    protect_metrics: bool = False
    """``/metrics`` is behind the gate too."""


class Rest:
    """The application as ASGI, with its error handlers in OpenAI's shape.

    FastAPI remembers every route function for the life of the process. So routes close over nothing, and get what
    they work with from the request: a router that is closed is then forgotten whole.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._app = app = FastAPIOffline(
            title="kvrouter",
            version=given.view.version,
            summary="A KV-cache-aware router for LLM inference.",
            redirect_slashes=False,
            redoc_url=None,
        )
        surface = given.surface
        served = [_probes]
        if surface is not Surface.CLIENTS:
            served += [_metrics, _debug, admin.routes]
        if surface is not Surface.ADMINISTRATION:
            served += [_models, _inference]
        for routes in served:
            app.include_router(routes)
        app.add_exception_handler(RouterError, _router_error)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(Exception, _unexpected)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        scope[_GIVEN] = self._given
        scope[ADMIN_GIVEN] = self._given.admin
        await self._app(scope, receive, send)


_GIVEN = "kvrouter.given"


def _given(request: Request) -> Given:
    given: Given = request.scope[_GIVEN]
    return given


def _authorized(request: Request) -> None:
    _given(request).view.keys().authorize(request.headers.raw)


def _metrics_admitted(request: Request) -> None:
    if _given(request).protect_metrics:
        admitted(request)


FromRequest = Annotated[Given, Depends(_given)]


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


_probes = APIRouter(tags=["operations"])
_metrics = APIRouter(tags=["operations"], dependencies=[Depends(_metrics_admitted)])
_debug = APIRouter(tags=["operations"], dependencies=[Depends(admitted)])
_models = APIRouter(tags=["models"], dependencies=[Depends(_authorized)])
_inference = APIRouter(tags=["inference"])


@_probes.head("/health", include_in_schema=False)
@_probes.get("/health")
async def health() -> Response:
    """Liveness: the process answers. Says nothing about engines."""
    return _json({"status": "ok"})


@_probes.head("/ready", include_in_schema=False)
@_probes.get("/ready")
async def ready(given: FromRequest) -> Response:
    """Readiness: not draining, and some endpoint that may decode is not down."""
    family = await given.siblings.readiness()
    if given.lifecycle.draining or given.lifecycle.out_of_service or family.draining:
        return _json({"status": "draining"}, 503)
    answering = [state.health for state in given.view.states() if state.endpoint.role.value != "prefill"]
    able = sum(health in (Health.HEALTHY, Health.UNKNOWN) for health in answering)
    drained = answering.count(Health.DRAINING)
    # Without traffic a pool at zero is never woken: a router that can wake it takes requests.
    ready = bool(able) or given.view.wakes()
    status = "ready" if ready else "no endpoint"
    if drained and not ready:
        status = "all endpoints drained" if drained == len(answering) else "no endpoint that is not drained"
    shown = {"status": status, "endpoints": able, **family.shown}
    return _json(shown, 200 if ready else 503)


@_probes.head("/version", include_in_schema=False)
@_probes.get("/version")
async def version(given: FromRequest) -> Response:
    return _json({"version": given.view.version})


@_metrics.head("/metrics", include_in_schema=False)
@_metrics.get("/metrics")
async def metrics(given: FromRequest) -> Response:
    page = given.view.metrics_page()
    if page is None:
        raise NotFound("Metrics are switched off (metrics.enabled).")
    return Response(await given.siblings.metrics(page), media_type=given.metrics_content_type)


@_debug.get("/debug/endpoints")
async def endpoints(given: FromRequest) -> Response:
    """Every endpoint as the router sees it now."""
    return _json({"endpoints": given.view.describe()})


@_debug.get("/debug/decisions")
async def decisions(given: FromRequest) -> Response:
    """The last decisions, newest first: predicted and realised time to first token, outcome. No prompts."""
    return _json({"decisions": given.view.decisions()})


@_debug.get("/debug/slots")
async def slots(given: FromRequest) -> Response:
    """Leases, counters, queues and tasks of this process. ``at_rest`` is true when all that was taken is given back."""
    return _json(given.view.slots())


@_debug.get("/debug/flow")
async def flow(given: FromRequest) -> Response:
    """Who waits for an endpoint with room: queues by priority and tenant, deficits, and how full endpoints are."""
    return _json(given.view.flow())


@_debug.get("/debug/plan")
async def plan(given: FromRequest) -> Response:
    """What engines each pool should have, and why: the binding constraint, the marginal engine, what was rejected."""
    return _json(given.view.plan())


@_models.get("/v1/models")
async def models(given: FromRequest) -> Response:
    """Models over all endpoints, aliases and LoRA adapters included."""
    return Response(listing(given.view.states()), media_type="application/json")


@_models.get("/v1/models/{model:path}")
async def model(given: FromRequest, model: Annotated[str, "a model id; may hold slashes"]) -> Response:
    card = merged(given.view.states()).get(model)
    if card is None:
        raise ModelNotFound(f"The model `{model[:200]}` does not exist.", param="model")
    return Response(card.raw, media_type="application/json")


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


def _path(request: Request) -> str:
    """As it stands in the scope: starlette's own reading fails on a query that is no UTF-8."""
    path: str = request.scope["path"]
    return path[:200]


async def not_here(request: Request) -> Response:
    """Inference paths stand in the schema; a request gets here only with a method that the front leaves alone."""
    raise MethodNotAllowed(f"{request.method} is not allowed on {_path(request)}; use POST.", allow="POST")


def _name(method: str, path: str) -> str:
    return method + "_" + path.strip("/").replace("/", "_").replace("{", "").replace("}", "")


def _list_inference_paths() -> None:
    for path in PATHS:
        _inference.add_api_route(
            path,
            not_here,
            methods=["POST"],
            name=_name("post", path),
            openapi_extra={"requestBody": _BODY, "responses": _ANSWER},
        )
    parameter = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    stored = "/v1/responses/{response_id}"
    for method, path in (("GET", stored), ("DELETE", stored), ("POST", f"{stored}/cancel")):
        _inference.add_api_route(
            path,
            not_here,
            methods=[method],
            name=_name(method.lower(), path),
            openapi_extra={"parameters": [parameter], "responses": _ANSWER},
        )


_list_inference_paths()


def _answer(error: RouterError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers=headers)


async def _router_error(_request: Request, error: Exception) -> Response:
    return _answer(error if isinstance(error, RouterError) else RouterError("The router failed; its log tells why."))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = _path(request)
    if status == 404:
        return _answer(NotFound(f"There is nothing at {path}; the paths served are listed at /docs."))
    if status == 405:
        allow = (getattr(error, "headers", None) or {}).get("Allow")
        return _answer(MethodNotAllowed(f"{request.method} is not allowed on {path}.", allow=allow))
    return _answer(RouterError("The request could not be served."))


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("%s failed", ascii(_path(request))[1:-1], exc_info=error)
    return _answer(RouterError("The router failed while serving this request; its log tells why."))
