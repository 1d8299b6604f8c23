"""PriorityClass: the lines of one priority, and whose turn it is among them. PURE.

Deficit round robin: every tenant that waits is given `quantum` tokens times its weight when nobody who waits has any
left, and is served while it has some. Over time the tokens served to tenants that keep waiting are as their weights,
whatever their requests cost. A tenant whose prefix lies where there is room goes before others that have tokens left:
locality decides the order within a round, never the shares.

Tenants that wait at other routers take part: a turn that is theirs is left to them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from router.flowcontrol.charges import Account
from router.flowcontrol.entries import Entry
from router.flowcontrol.lines import Line, Open

_MOST_IDLE = 4096


class PriorityClass:
    __slots__ = ("_lines", "_ring", "nbytes", "priority", "quantum", "requests")

    def __init__(self, priority: int, quantum: float) -> None:
        self.priority = priority
        self.requests = 0
        self.nbytes = 0
        self.quantum = quantum
        self._lines: dict[str, Line] = {}
        self._ring: OrderedDict[str, Line] = OrderedDict()
        """Lines in which something waits, here or elsewhere, in the order of their turns."""

    def line(self, tenant: str, weight: float, now: float) -> Line:
        """The tenant's, opened if there is none."""
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line(Account(tenant, weight, now), now)
        return line

    def known(self, tenant: str) -> Line | None:
        return self._lines.get(tenant)

    def lines(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def add(self, entry: Entry, weight: float, key: float) -> None:
        line = self.line(entry.tenant, weight, entry.enqueued_at)
        line.add(entry, key)
        self.requests += 1
        self.nbytes += entry.nbytes
        self._ring.setdefault(entry.tenant, line)

    def remove(self, entry: Entry, now: float) -> None:
        line = self._lines[entry.tenant]
        line.remove(entry)
        self.requests -= 1
        self.nbytes -= entry.nbytes
        self.settle(line, now)

    def settle(self, line: Line, now: float) -> None:
        """After what waits of a tenant has changed: whether it takes part in the round."""
        tenant = line.account.tenant
        if line.requests or line.elsewhere:
            self._ring.setdefault(tenant, line)
        elif self._ring.pop(tenant, None) is not None:
            # Who does not wait saves nothing up; what it was served beyond its turn it still owes.
            line.account.deficit = min(line.account.deficit, 0.0)
            line.idle_since = now

    def turn(self, open_: Open, *, alone: bool) -> Line | None:
        """Whose turn it is among the lines with a request here for which there is room.

        None: nobody's, or it is that of a tenant waiting at another router; `alone` takes the turn all the same.
        """
        here: list[Line] = []
        others: list[Line] = []
        for line in self._ring.values():
            if line.waits_here(open_):
                here.append(line)
            elif line.waits_elsewhere(open_):
                others.append(line)
        if not here:
            return None
        ready = [line for line in here if line.account.deficit > 0.0]
        if not ready and not any(line.account.deficit > 0.0 for line in others):
            self._replenish(here + others)
            ready = [line for line in here if line.account.deficit > 0.0]
        if not ready:
            if others and not alone:
                return None
            return max(here, key=lambda line: line.account.deficit / line.account.weight)
        for line in ready:
            if line.reserving(open_) is not None:
                return line
        return ready[0]

    def waits_elsewhere(self, open_: Open) -> bool:
        return any(line.waits_elsewhere(open_) for line in self._ring.values())

    def served(self, line: Line) -> None:
        """After a charge: whoever has used up its turn goes to the end."""
        tenant = line.account.tenant
        if line.account.deficit <= 0.0 and tenant in self._ring:
            self._ring.move_to_end(tenant)

    def _replenish(self, waiting: list[Line]) -> None:
        """As many rounds as it takes for one of `waiting` to have tokens again."""
        quantum = self.quantum
        rounds = min(int(-line.account.deficit // (quantum * line.account.weight)) + 1 for line in waiting)
        for line in self._lines.values():
            account = line.account
            given = rounds * quantum * account.weight
            if account.tenant in self._ring:
                most = max(account.deficit, quantum * account.weight)
                account.deficit = min(account.deficit + given, most)
            elif account.deficit < 0.0:
                account.deficit = min(account.deficit + given, 0.0)

    def sweep(self, now: float, idle_s: float) -> None:
        """Forgets tenants that have not waited for so long, and the longest idle beyond a bound."""
        idle = [(line.idle_since, tenant) for tenant, line in self._lines.items() if tenant not in self._ring]
        idle.sort()
        spare = len(idle) - _MOST_IDLE
        for number, (since, tenant) in enumerate(idle):
            if number < spare or now - since > idle_s:
                del self._lines[tenant]
