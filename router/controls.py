"""Adapters from the control client to what the pool and tokenization ask of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.core import Endpoint
from router.pool.calls import CallError
from router.ports import UpstreamBroken, UpstreamRefused
from router.upstream.control import ControlClient, ControlError

_REFUSED_PROMPT = (400, 413, 422)


class PoolCalls:
    """Implements `router.pool.calls.ControlCalls`."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    async def get_text(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> str:
        try:
            return await self._client.get_text(endpoint, path, timeout_s=timeout_s)
        except ControlError as error:
            raise CallError(error.reason, status=error.status) from None


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class EngineTokenize:
    """Implements `router.tokenization.remote.RemoteTokenize`."""

    def __init__(self, client: ControlClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def __call__(self, endpoint: Endpoint, payload: bytes) -> Sequence[int] | None:
        try:
            answer = await self._client.post_json(endpoint, "/tokenize", payload, timeout_s=self._timeout_s)
        except ControlError as error:
            if error.status in _REFUSED_PROMPT:
                return None
            raise UpstreamRefused(error.reason) from None
        try:
            return msgspec.convert(answer, _Tokenized).tokens
        except msgspec.ValidationError:
            raise UpstreamBroken("an answer of /tokenize without tokens") from None
