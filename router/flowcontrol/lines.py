"""Line: one tenant's waiting requests within one priority class, and its account. PURE.

Within a line requests go in the order of their key (arrival, or what is due first), except that one whose prefix lies
where there is room may go before those whose prefix lies elsewhere. A request is passed over at most `MOST_BYPASSED`
times, so nothing starves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from router.flowcontrol.charges import Account
from router.flowcontrol.entries import Entry, Fate, Heap, Lane

MOST_BYPASSED = 8

Open = Mapping[Lane, Collection[str]]
"""Lane -> ids of endpoints with room; a lane without room is absent."""


class _Waiting:
    """One lane of a line."""

    __slots__ = ("all", "count", "free", "reserved")

    def __init__(self) -> None:
        self.count = 0
        self.all = Heap()
        self.free = Heap()
        """Those that prefer nobody."""
        self.reserved: dict[str, Heap] = {}


class Line:
    __slots__ = ("_arrivals", "_lanes", "account", "elsewhere", "idle_since", "nbytes", "requests")

    def __init__(self, account: Account, now: float) -> None:
        self.account = account
        self.requests = 0
        self.nbytes = 0
        self.elsewhere: Mapping[Lane, int] = {}
        """What other routers have waiting of this tenant."""
        self.idle_since = now
        self._lanes: dict[Lane, _Waiting] = {}
        self._arrivals: list[Entry] = []

    def add(self, entry: Entry, key: float) -> None:
        waiting = self._lanes.get(entry.lane)
        if waiting is None:
            waiting = self._lanes[entry.lane] = _Waiting()
        alive = waiting.count
        waiting.all.push(key, entry, alive)
        if not entry.prefers:
            waiting.free.push(key, entry, alive)
        for endpoint in entry.prefers:
            heap = waiting.reserved.get(endpoint)
            if heap is None:
                heap = waiting.reserved[endpoint] = Heap()
            heap.push(key, entry, alive)
        waiting.count += 1
        self.requests += 1
        self.nbytes += entry.nbytes
        self._note(entry)

    def rekey(self, key: Callable[[Entry], float]) -> None:
        """What waits is ordered by another key from now on."""
        waiting = sorted((entry for entry in self._arrivals if entry.fate is Fate.QUEUED), key=lambda each: each.number)
        self._lanes.clear()
        self._arrivals.clear()
        self.requests = self.nbytes = 0
        for entry in waiting:
            self.add(entry, key(entry))

    def remove(self, entry: Entry) -> None:
        """Its fate is known."""
        waiting = self._lanes[entry.lane]
        waiting.count -= 1
        if not waiting.count:
            del self._lanes[entry.lane]
        self.requests -= 1
        self.nbytes -= entry.nbytes
        if not self.requests:
            self._arrivals.clear()

    def lanes(self) -> dict[Lane, int]:
        """Requests by lane."""
        return {lane: waiting.count for lane, waiting in self._lanes.items()}

    def waits_here(self, open_: Open) -> bool:
        return any(lane in open_ for lane in self._lanes)

    def waits_elsewhere(self, open_: Open) -> bool:
        return any(lane in open_ for lane in self.elsewhere)

    def newest(self) -> Entry:
        """The one that came last. The line must not be empty."""
        arrivals = self._arrivals
        while arrivals[-1].fate is not Fate.QUEUED:
            arrivals.pop()
        return arrivals[-1]

    def reserving(self, open_: Open) -> Entry | None:
        """The first whose prefix lies where there is room, if it may go before those passed over for it."""
        best: Entry | None = None
        for lane, waiting in self._lanes.items():
            if not waiting.reserved or lane not in open_:
                continue
            head = waiting.all.head()
            if head is not None and head.bypassed >= MOST_BYPASSED:
                continue
            for endpoint in open_[lane]:
                heap = waiting.reserved.get(endpoint)
                found = None if heap is None else heap.head()
                if found is not None and (best is None or found.number < best.number):
                    best = found
        return best

    def next(self, open_: Open, keyed_by_arrival: bool) -> Entry:
        """Who goes. A request of an open lane must wait here."""
        heads = [head for lane in open_ if (head := self._head(lane)) is not None]
        if not keyed_by_arrival:
            return min(heads, key=lambda entry: (entry.due, entry.number))
        first = min(heads, key=lambda entry: entry.number)
        if first.bypassed >= MOST_BYPASSED:
            return first
        chosen = self.reserving(open_)
        if chosen is None and first.prefers:
            chosen = self._lanes[first.lane].free.head()
        if chosen is None or chosen is first:
            return first
        first.bypassed += 1
        return chosen

    def _head(self, lane: Lane) -> Entry | None:
        waiting = self._lanes.get(lane)
        return None if waiting is None else waiting.all.head()

    def _note(self, entry: Entry) -> None:
        arrivals = self._arrivals
        if len(arrivals) > 2 * self.requests + 64:
            arrivals[:] = [known for known in arrivals if known.fate is Fate.QUEUED]
        arrivals.append(entry)
