"""Queues: what waits because no endpoint has room, within limits, and who goes next. PURE.

Classes strictly by priority, higher first; within one, tenants by deficit round robin (`router.flowcontrol.classes`);
within a tenant, by arrival or by what is due first (`router.flowcontrol.lines`). Nobody waits here for an endpoint that
has room: the caller offers what must wait and takes what may go.

When it is full, room is made at the cost of whoever is entitled to least: a lower class's newest request, then the
newest of that tenant of the same class which has most waiting for its weight. A newcomer that would be that one itself
is refused. Sheddable requests (negative priority) fill only a part of the room, and so are refused first.

Every request offered and taken in ends exactly once: dispatched, evicted, expired or left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from router.flowcontrol.classes import PriorityClass
from router.flowcontrol.drain import DrainRate
from router.flowcontrol.entries import Entry, Fate, Lane
from router.flowcontrol.limits import QueueLimits, Turns
from router.flowcontrol.lines import Line, Open

_IDLE_S = 60.0
_ENOUGH = 1e-9
_MULTIPLE = 16.0
_AMPLE = 1 / 16
"""Of free room: below it nobody is refused for what it has waiting."""

Backlog = Mapping[tuple[int, str], Mapping[Lane, int]]
"""(priority, tenant) -> requests waiting by lane."""


Refusal = Literal["full", "shed", "too-large"]
"""Why a request may not wait: no room, no room for sheddable ones, or it alone is beyond a limit."""


class Offered(NamedTuple):
    refusal: Refusal | None
    evicted: list[Entry]
    """Put out to make room, usually none."""


class Turn(NamedTuple):
    """What `take` found."""

    entry: Entry | None
    deferred: bool = False
    """There is room and somebody waits here, but it is the turn of a request that waits at another router."""


class Kept(NamedTuple):
    """Room that is kept for classes of a priority: those below it have only the rest."""

    above: int
    rest: Open


class Queues:
    def __init__(self, limits: QueueLimits, turns: Turns | None = None) -> None:
        self._limits = limits
        self._turns = turns or Turns()
        self._classes: dict[int, PriorityClass] = {}
        self._order: list[PriorityClass] = []
        """Highest priority first."""
        self._lanes: dict[Lane, int] = {}
        self._expiries: list[tuple[float, int, Entry]] = []
        self._numbers = 0
        self._swept_at = 0.0
        self.requests = 0
        self.nbytes = 0
        self.drain = DrainRate()

    # Coming

    def offer(self, entry: Entry, now: float) -> Offered:
        """Takes `entry` in, or says why not."""
        evicted: list[Entry] = []
        priority, tenant, nbytes = entry.priority, entry.tenant, entry.nbytes
        freed = 0
        while True:
            refusal = self.refuses(priority, tenant, nbytes)
            if refusal is not None:
                return Offered(refusal, evicted)
            # Beyond limits that were lowered meanwhile a newcomer takes the room of others, and no more than its own.
            if self._fits(priority, nbytes) or (evicted and freed >= nbytes):
                break
            victim = self._victim(priority, tenant, nbytes)
            if victim is None:
                break
            self._end(victim, Fate.EVICTED, now)
            evicted.append(victim)
            freed += victim.nbytes
        self._add(entry, now)
        return Offered(None, evicted)

    def refuses(self, priority: int, tenant: str, nbytes: int) -> Refusal | None:
        """Why a request of that kind would be refused now; None: there is room, or some would be made."""
        if nbytes > min(self._limits.total.nbytes, self._limits.of(priority).nbytes):
            return "too-large"
        if self._takes_too_much(priority, tenant, nbytes):
            return "full"
        if self._fits(priority, nbytes) or self._victim(priority, tenant, nbytes) is not None:
            return None
        return "shed" if priority < 0 else "full"

    def _takes_too_much(self, priority: int, tenant: str, nbytes: int) -> bool:
        """Whether the tenant would have more waiting than a multiple of what is free, by its weight: so room is left
        for others while it is refused at once, and hardly anybody has to be put out again. (Dynamic thresholds:
        Choudhury and Hahne, 1998.)"""
        own = self._classes.get(priority)
        if own is None:
            return False
        limits, total = self._limits.of(priority), self._limits.total
        before = [known for known in self._order if known.priority >= priority]
        free = 1.0 - max(
            own.requests / limits.requests,
            own.nbytes / limits.nbytes,
            sum(known.requests for known in before) / total.requests,
            sum(known.nbytes for known in before) / total.nbytes,
        )
        if free >= _AMPLE or free <= 0.0:
            return False
        mine = own.known(tenant)
        requests, size = (0, 0) if mine is None else (mine.requests, mine.nbytes)
        weight = self._turns.weight(tenant)
        others = sum(line.account.weight for line in _waiting(own) if line.account.tenant != tenant)
        part = max((requests + 1) / limits.requests, (size + nbytes) / limits.nbytes)
        return bool(others) and part > _MULTIPLE * free * weight / (weight + others)

    def _add(self, entry: Entry, now: float) -> None:
        self._numbers += 1
        entry.number = self._numbers
        self._class(entry.priority).add(entry, self._turns.weight(entry.tenant), self._turns.key(entry))
        if not self.requests:
            self.drain.begin(now)
        self.requests += 1
        self.nbytes += entry.nbytes
        self._lanes[entry.lane] = self._lanes.get(entry.lane, 0) + 1
        if len(self._expiries) > 2 * self.requests + 64:
            self._expiries = [item for item in self._expiries if item[2].fate is Fate.QUEUED]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (entry.expires_at, entry.number, entry))

    def _fits(self, priority: int, nbytes: int) -> bool:
        return self._fits_class(priority, nbytes) and self._fits_total(priority, nbytes)

    def _fits_class(self, priority: int, nbytes: int) -> bool:
        known = self._classes.get(priority)
        limits = self._limits.of(priority)
        if known is None:
            return limits.requests >= 1 and nbytes <= limits.nbytes
        return known.requests + 1 <= limits.requests and known.nbytes + nbytes <= limits.nbytes

    def _fits_total(self, priority: int, nbytes: int) -> bool:
        total = self._limits.total
        if self.requests + 1 > total.requests or self.nbytes + nbytes > total.nbytes:
            return False
        if priority >= 0:
            return True
        sheddable = [known for known in self._order if known.priority < 0]
        share = self._limits.sheddable_share
        return (
            sum(known.requests for known in sheddable) + 1 <= share * total.requests
            and sum(known.nbytes for known in sheddable) + nbytes <= share * total.nbytes
        )

    def _victim(self, priority: int, tenant: str, nbytes: int) -> Entry | None:
        """Whom to put out for such a request, which does not fit; None: nobody is entitled to less."""
        if self._fits_class(priority, nbytes):
            for lower in reversed(self._order):
                if lower.priority >= priority:
                    break
                if lower.requests:
                    return max(_waiting(lower), key=lambda line: self._size(lower, line)).newest()
        own = self._classes.get(priority)
        longest = None if own is None else self._longest(own, tenant, nbytes)
        return None if longest is None else longest.newest()

    def _longest(self, own: PriorityClass, tenant: str, nbytes: int) -> Line | None:
        """The tenant with most waiting for its weight; None if that would be the newcomer's."""
        others = [line for line in _waiting(own) if line.account.tenant != tenant]
        if not others:
            return None
        longest = max(others, key=lambda line: self._size(own, line))
        limits, mine = self._limits.of(own.priority), own.known(tenant)
        requests, total = (0, 0) if mine is None else (mine.requests, mine.nbytes)
        size = max((requests + 1) / limits.requests, (total + nbytes) / limits.nbytes)
        return longest if self._size(own, longest) > size / self._turns.weight(tenant) + _ENOUGH else None

    def _size(self, own: PriorityClass, line: Line) -> float:
        limits = self._limits.of(own.priority)
        return max(line.requests / limits.requests, line.nbytes / limits.nbytes) / line.account.weight

    # Going

    def take(self, open_: Open, now: float, *, alone: bool = False, kept: Kept | None = None) -> Turn:
        """The next to be dispatched, its tenant charged. `alone`: turns of others' requests are not left to them."""
        for priority_class in self._order:
            priority = priority_class.priority
            room = open_ if kept is None or priority >= kept.above else kept.rest
            line = priority_class.turn(room, alone=alone) if priority_class.requests else None
            if line is None:
                if not alone and priority_class.waits_elsewhere(room):
                    return Turn(None, self._somebody(room, priority))
                continue
            entry = line.next(room, self._turns.by_arrival)
            entry.charge = line.account.charge(entry.cost)
            self._end(entry, Fate.DISPATCHED, now)
            priority_class.served(line)
            self.drain.dispatched(now)
            return Turn(entry)
        return Turn(None)

    def _somebody(self, room: Open, priority: int) -> bool:
        """Whether anything of that priority or a lower one waits here for which there is room."""
        return any(
            line.requests and line.waits_here(room)
            for known in self._order
            if known.priority <= priority
            for line in known.lines()
        )

    def leave(self, entry: Entry, now: float) -> bool:
        """Its client is gone. False: it does not wait any more."""
        if entry.fate is not Fate.QUEUED:
            return False
        self._end(entry, Fate.LEFT, now)
        return True

    def expire(self, now: float) -> list[Entry]:
        """Those that have waited for too long, taken out."""
        expired = []
        expiries = self._expiries
        while expiries and (expiries[0][0] <= now or expiries[0][2].fate is not Fate.QUEUED):
            entry = heapq.heappop(expiries)[2]
            if entry.fate is Fate.QUEUED:
                self._end(entry, Fate.EXPIRED, now)
                expired.append(entry)
        if now - self._swept_at > _IDLE_S / 4:
            self._sweep(now)
        return expired

    def _end(self, entry: Entry, fate: Fate, now: float) -> None:
        entry.fate = fate
        self._classes[entry.priority].remove(entry, now)
        self.requests -= 1
        self.nbytes -= entry.nbytes
        left = self._lanes[entry.lane] - 1
        if left:
            self._lanes[entry.lane] = left
        else:
            del self._lanes[entry.lane]

    # What other routers have

    def heard(self, backlog: Backlog, now: float) -> None:
        """What waits at all other routers now, in place of what was heard before."""
        for priority_class in self._order:
            for line in priority_class.lines():
                if line.elsewhere and (priority_class.priority, line.account.tenant) not in backlog:
                    line.elsewhere = {}
                    priority_class.settle(line, now)
        for (priority, tenant), lanes in backlog.items():
            priority_class = self._class(priority)
            line = priority_class.line(tenant, self._turns.weight(tenant), now)
            line.elsewhere = lanes
            priority_class.settle(line, now)

    def charged_elsewhere(self, priority: int, tenant: str, tokens: float) -> None:
        """Another router served a tenant so much more; negative where it had expected too much."""
        priority_class = self._classes.get(priority)
        line = None if priority_class is None else priority_class.known(tenant)
        if line is not None:
            line.account.deficit -= tokens

    # What may change

    def apply(self, limits: QueueLimits, turns: Turns) -> None:
        """Limits and turns from now on. What waits goes on waiting, also beyond limits that are lower now."""
        rekeyed = turns.ordering != self._turns.ordering
        self._limits, self._turns = limits, turns
        for priority_class in self._order:
            priority_class.quantum = turns.quantum
            for line in priority_class.lines():
                line.account.weight = turns.weight(line.account.tenant)
                if rekeyed:
                    line.rekey(turns.key)

    # What is seen of it

    @property
    def lanes(self) -> Mapping[Lane, int]:
        return self._lanes

    def classes(self) -> Iterator[PriorityClass]:
        """Highest priority first."""
        return iter(self._order)

    def ahead_of(self, priority: int) -> int:
        """Requests that go before a newcomer of that priority."""
        return sum(known.requests for known in self._order if known.priority >= priority)

    def retry_after_s(self, priority: int, now: float, otherwise_s: float) -> int:
        return self.drain.retry_after_s(self.ahead_of(priority), now, otherwise_s)

    def _class(self, priority: int) -> PriorityClass:
        known = self._classes.get(priority)
        if known is None:
            known = self._classes[priority] = PriorityClass(priority, self._turns.quantum)
            self._order.append(known)
            self._order.sort(key=lambda each: -each.priority)
        return known

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for priority_class in self._order:
            priority_class.sweep(now, _IDLE_S)
        self._order = [known for known in self._order if any(True for _ in known.lines())]
        self._classes = {known.priority: known for known in self._order}


def _waiting(own: PriorityClass) -> Iterator[Line]:
    return (line for line in own.lines() if line.requests)
