"""Administration over HTTP: taking endpoints and the router out of service and back, reloading, what is in use.

Every call leaves one line in the log ``kvrouter.audit``: who (a key's name, never a key), from where, what, and how it
ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from router.api.gate import Gate, audit_name
from router.api.keys import Key
from router.errors import InvalidRequest, NotFound, RouterError, WorkersSilent

audit = logging.getLogger("kvrouter.audit")


class Order(msgspec.Struct, frozen=True):
    """What an administrator asks of the router, so that it can be told to its siblings."""

    do: Literal["drain", "resume"]
    endpoint: str | None = None
    """An address or one of its ranks; None: the router itself."""


class Obedience(NamedTuple):
    """How many workers follow an order, of how many that run."""

    obeyed: int
    of: int
    told_others: bool | None = None
    """Whether the other routers over the same Redis have it; None: there are none, or it is not about them."""


class Reloaded(NamedTuple):
    changed: Sequence[str]
    needs_restart: Sequence[str]


class Administration(Protocol):
    """What the routes ask for; implemented by `router.orders`."""

    async def order(self, order: Order) -> Obedience | None:
        """None: no such endpoint."""
        ...

    async def reload(self) -> Reloaded:
        """Raises `InvalidRequest` when the new configuration is wrong (the old one stays) or there is none to read."""
        ...

    def endpoints(self) -> list[dict[str, Any]]: ...

    def status(self) -> dict[str, Any]:
        """Of the router itself: whether it is out of service, and what it has under way."""
        ...


class AdminGiven(NamedTuple):
    administration: Administration
    gate: Gate


ADMIN_GIVEN = "kvrouter.admin"
"""Where in the request's scope the above stands."""


def _given(request: Request) -> AdminGiven:
    given: AdminGiven = request.scope[ADMIN_GIVEN]
    return given


def admitted(request: Request) -> Key:
    """Raises `Unauthorized` and `Forbidden`, and notes those who tried to change something."""
    try:
        return _given(request).gate.admit(request.headers.raw)
    except RouterError as error:
        if request.method == "POST":
            _note(request, None, f"refused ({type(error).__name__})")
        raise


Given = Annotated[AdminGiven, Depends(_given)]
Who = Annotated[Key, Depends(admitted)]

routes = APIRouter(prefix="/admin", tags=["administration"])


def _note(request: Request, key: Key | None, outcome: str) -> None:
    who = "unknown" if key is None else audit_name(key)
    peer = request.client.host if request.client is not None else "unknown"
    # A path is the client's text: it must not bring a line break or a control sequence into the log.
    audit.info("by %s from %s: %s %s: %s", who, peer, request.method, ascii(request.scope["path"][:200])[1:-1], outcome)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


@routes.get("/endpoints")
async def endpoints(given: Given, _who: Who) -> Response:
    """Every endpoint with health, role and what this router has on it."""
    return _json({"endpoints": given.administration.endpoints()})


@routes.post("/endpoints/{endpoint:path}/drain")
async def drain_endpoint(request: Request, given: Given, who: Who, endpoint: str) -> Response:
    """It finishes what it has and gets nothing new, until `resume`, whatever its health. All ranks of an address."""
    return await _obey(request, given, who, Order("drain", endpoint))


@routes.post("/endpoints/{endpoint:path}/resume")
async def resume_endpoint(request: Request, given: Given, who: Who, endpoint: str) -> Response:
    """Takes `drain` back."""
    return await _obey(request, given, who, Order("resume", endpoint))


@routes.post("/drain")
async def drain(request: Request, given: Given, who: Who) -> Response:
    """`/ready` says no, so that balancers send nothing new; whatever comes all the same is served."""
    return await _obey(request, given, who, Order("drain"))


@routes.post("/resume")
async def resume(request: Request, given: Given, who: Who) -> Response:
    """Takes `drain` back. A router that is ending goes on ending."""
    return await _obey(request, given, who, Order("resume"))


@routes.post("/reload")
async def reload(request: Request, given: Given, who: Who) -> Response:
    """Loads the configuration again, as SIGHUP does, and tells what changed."""
    try:
        reloaded = await given.administration.reload()
    except InvalidRequest:
        _note(request, who, "refused")
        raise
    _note(request, who, "done")
    return _json(reloaded._asdict())


async def _obey(request: Request, given: AdminGiven, who: Key, order: Order) -> Response:
    obedience = await given.administration.order(order)
    if obedience is None:
        _note(request, who, "no such endpoint")
        raise NotFound(f"There is no endpoint {(order.endpoint or '')[:200]}; GET /admin/endpoints lists them.")
    if obedience.obeyed < obedience.of:
        _note(request, who, f"{obedience.obeyed} of {obedience.of} workers obey")
        raise WorkersSilent(
            f"{obedience.obeyed} of {obedience.of} workers obey, the others did not answer in time: ask again.",
            retry_after_s=1,
        )
    told = obedience.told_others
    _note(request, who, "done here, other routers are not told yet" if told is False else "done")
    others = {} if told is None else {"told_other_routers": told}
    return _json({"done": order.do, "endpoint": order.endpoint, **others, **given.administration.status()})
