"""Hand-offs of KV between engines: what a prefill leg returns, and how a decode leg reaches the engine that holds the
blocks.

Engines of one process find each other in a `Directory`; others are reached by HTTP on the address in the hand-off.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

import httpx
import msgspec

from loadtest.simulator.settings import in_url

_TIMEOUT_S = 2.0


class HandOff(msgspec.Struct, frozen=True):
    """Where a prompt's KV waits: the part of ``kv_transfer_params`` that a decode leg needs."""

    engine_id: str
    request_id: str
    host: str
    port: int


class FatalParams(Exception):
    """``do_remote_prefill`` with nothing to read from: the real engine dies of it."""


class IncompleteParams(Exception):
    """Some of what a hand-off needs is missing: the real engine never answers."""


def wants_remote_decode(params: Any) -> bool:
    return isinstance(params, dict) and params.get("do_remote_decode") is True


def parse(params: Any) -> HandOff | None:
    """The hand-off in a request's ``kv_transfer_params``; None if it asks for none.

    Raises FatalParams, IncompleteParams.
    """
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    names = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
    present = [name for name in names if params.get(name) is not None]
    if not present:
        raise FatalParams("do_remote_prefill without a remote engine")
    if len(present) < len(names):
        raise IncompleteParams(f"hand-off without {', '.join(n for n in names if n not in present)}")
    try:
        port = int(params["remote_port"])
    except (TypeError, ValueError) as error:
        raise IncompleteParams("remote_port is no number") from error
    host, engine_id, request_id = (str(params[f"remote_{name}"]) for name in ("host", "engine_id", "request_id"))
    return HandOff(engine_id, request_id, host, port)


def render(hand_off: HandOff, *, blocks: list[int], tokens: int, cached_tokens: int) -> dict[str, Any]:
    """``kv_transfer_params`` of a finished prefill leg, as vLLM 0.32 shapes it."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [blocks],
        "remote_engine_id": hand_off.engine_id,
        "remote_request_id": hand_off.request_id,
        "remote_host": hand_off.host,
        "remote_port": hand_off.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }


class Holder(Protocol):
    """An engine that may hold blocks for a reader."""

    def holds(self, engine_id: str, request_id: str) -> bool: ...

    def release(self, engine_id: str, request_id: str) -> bool: ...


class Directory:
    """The engines of this process by address, and a client for the others. One per fleet; close it with `aclose`."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, int], Holder] = {}
        self._client: httpx.AsyncClient | None = None

    def add(self, host: str, port: int, holder: Holder) -> None:
        self._holders[host, port] = holder

    def remove(self, host: str, port: int) -> None:
        self._holders.pop((host, port), None)

    async def holds(self, hand_off: HandOff) -> bool:
        """Whether the blocks can be read now."""
        holder = self._holders.get((hand_off.host, hand_off.port))
        if holder is not None:
            return holder.holds(hand_off.engine_id, hand_off.request_id)
        return await self._ask(hand_off, "read")

    async def release(self, hand_off: HandOff) -> None:
        """Tell the holder that the blocks were read."""
        holder = self._holders.get((hand_off.host, hand_off.port))
        if holder is not None:
            holder.release(hand_off.engine_id, hand_off.request_id)
        else:
            await self._ask(hand_off, "release")

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, hand_off: HandOff, verb: str) -> bool:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=False)
        path = f"/sim/kv/{quote(hand_off.engine_id, safe='')}/{quote(hand_off.request_id, safe='')}/{verb}"
        try:
            answer = await self._client.post(f"http://{in_url(hand_off.host)}:{hand_off.port}{path}")
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        return answer.status_code == 200
