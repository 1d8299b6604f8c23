"""The simulator's own routes under /sim: faults, the record of what was sent, and the side channel of hand-offs."""

from __future__ import annotations

import msgspec

from loadtest.simulator.api.exchange import ApiError, Exchange
from loadtest.simulator.settings import Faults

RECENT = 100


async def get_faults(ex: Exchange) -> None:
    await ex.json({"faults": msgspec.to_builtins(ex.engine.faults), "left": ex.engine.faults_left})


async def set_faults(ex: Exchange) -> None:
    """Replace the faults by those in the body (an empty object: none)."""
    try:
        faults = msgspec.json.decode(ex.raw or b"{}", type=Faults)
    except msgspec.DecodeError as error:
        raise ApiError(400, f"faults: {error}") from error
    if faults.die:
        # Answered first: the death cuts this connection too.
        await ex.json({"faults": msgspec.to_builtins(faults)})
        ex.engine.set_faults(faults)
        return
    ex.engine.set_faults(faults)
    await ex.json({"faults": msgspec.to_builtins(faults)})


async def recent_requests(ex: Exchange) -> None:
    await ex.json({"requests": [entry.view() for entry in ex.engine.ledger.recent(RECENT)]})


async def one_request(ex: Exchange, request_id: str) -> None:
    """The latest answer under that request id; earlier ones in `attempts`, oldest first."""
    entries = ex.engine.ledger.find(request_id)
    if not entries:
        raise ApiError(404, f"no request {request_id!r} is remembered", "NotFoundError")
    await ex.json({**entries[-1].view(), "attempts": [entry.view() for entry in entries]})


async def kv_read(ex: Exchange, engine_id: str, request_id: str) -> None:
    if not ex.engine.holds(engine_id, request_id):
        raise ApiError(404, "no such hand-off", "NotFoundError")
    await ex.json({"held": True})


async def kv_release(ex: Exchange, engine_id: str, request_id: str) -> None:
    if not ex.engine.release(engine_id, request_id):
        raise ApiError(404, "no such hand-off", "NotFoundError")
    await ex.json({"released": True})
