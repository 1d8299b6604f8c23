"""Which endpoint holds a stored response (``/v1/responses/{id}``). PURE.

A bounded memory of this process: an engine keeps its responses in its own memory, so an id that is not found here is
asked of every endpoint, and nothing depends on an entry being present.
"""

from __future__ import annotations

from collections import OrderedDict


class ResponseHolders:
    """Response id -> endpoint id, the oldest forgotten first."""

    __slots__ = ("_by_id", "_limit")

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._by_id: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, response_id: str, endpoint_id: str) -> None:
        self._by_id[response_id] = endpoint_id
        self._by_id.move_to_end(response_id)
        if len(self._by_id) > self._limit:
            self._by_id.popitem(last=False)

    def get(self, response_id: str) -> str | None:
        return self._by_id.get(response_id)
