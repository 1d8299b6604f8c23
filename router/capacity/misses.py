"""Misses: how many requests were answered lately, and how many of them outside their objective. PURE.

What flow control or an engine that never began made wait beyond the time to first token has missed it too; what the
client ended earlier, and what failed for a reason that more engines would not mend, does not count.
"""

from __future__ import annotations

from collections import deque

from router.capacity.budget import LATELY
from router.capacity.demand import Objective
from router.capacity.plan import Record
from router.observability.events import Ended, Outcome

_BIN_S = 15.0
_BINS = 960
"""Four hours."""
_MOST_POOLS = 64
_BUSY = 503


class Misses:
    """By pool. Times are seconds of the wall clock, given by the caller."""

    def __init__(self) -> None:
        self._pools: dict[str, deque[list[int]]] = {}
        """Pool -> [bin, requests, misses], the bins in which some were answered."""

    def answered(self, pool: str, met: bool, now: float) -> None:
        if pool not in self._pools and len(self._pools) >= _MOST_POOLS:
            return
        bins = self._pools.setdefault(pool, deque(maxlen=_BINS))
        number = int(now // _BIN_S)
        if not bins or bins[-1][0] < number:
            bins.append([number, 0, 0])
        bins[-1][1] += 1
        bins[-1][2] += not met

    def record(self, pool: str, now: float, window_s: float) -> Record:
        """Of so many seconds, and of the last twelfth of them."""
        bins = self._pools.get(pool, ())
        since, lately = (now - window_s) // _BIN_S, (now - window_s / LATELY) // _BIN_S
        whole = [each for each in bins if each[0] > since]
        last = [each for each in whole if each[0] > lately]
        return Record(
            answered=sum(each[1] for each in whole),
            missed=sum(each[2] for each in whole),
            lately=sum(each[1] for each in last),
            missed_lately=sum(each[2] for each in last),
        )


def met(event: Ended, objective: Objective) -> bool | None:
    """Whether the request met its objective; None where it tells nothing of how many engines there are."""
    late = event.e2e_s > objective.ttft_s if event.ttft_s is None else event.ttft_s > objective.ttft_s
    match event.outcome:
        case Outcome.OK if not event.request.stream:
            # Its first token was not seen.
            return None
        case Outcome.OK:
            return not late and (event.itl_s is None or event.itl_s <= objective.tpot_s)
        case Outcome.REFUSED if event.status == _BUSY:
            return False
        case Outcome.CLIENT_GONE if late:
            return False
        case _:
            return None
