"""What other routers have in flight, as the director asks for it. Implements `router.ports.SharedLoad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvindex.redis_board import Load, RedisBoard
from kvindex.redis_index import RedisIndex
from router.core import EngineEstimate, Inflight
from router.inflight import InflightTracker, waiting

_NOBODY: Mapping[str, Inflight] = {}


class Alone:
    """One router: there are no others."""

    def others(self) -> Mapping[str, Inflight]:
        return _NOBODY


class Sharing:
    """`others` gives the others' load as the board has it, a new mapping after each exchange."""

    def __init__(self, others: Callable[[], Load]) -> None:
        self._others = others
        self._read: Load = {}
        self._made = _NOBODY

    def others(self) -> Mapping[str, Inflight]:
        load = self._others()
        if load is not self._read:
            self._read = load
            self._made = {endpoint: Inflight(*counts) for endpoint, counts in load.items()}
        return self._made


class SharingView:
    """What is shared, as metrics show it. Implements `router.observability.sharing.SharingSource`."""

    def __init__(self, index: RedisIndex, board: RedisBoard) -> None:
        self._index = index
        self._board = board
        self._sharing = Sharing(board.others)

    def routers(self) -> int:
        return self._board.routers

    def owned(self) -> int:
        return self._index.owned

    def followed(self) -> int:
        return self._index.followed

    def others(self) -> Mapping[str, Inflight]:
        return self._sharing.others()


def own_load(tracker: InflightTracker, estimates: Callable[[str], EngineEstimate | None]) -> Load:
    """What this router has in flight, for the others."""
    load = {}
    for name, counted in tracker.snapshot().items():
        now = waiting(counted, estimates(name))
        load[name] = (now.requests, now.prefill_tokens, now.tokens)
    return load
