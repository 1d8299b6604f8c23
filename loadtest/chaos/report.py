"""What a chaos run found: a verdict, a table, and the same as JSON. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from loadtest.chaos.client import Outcome

_GROWTH_BYTES = 24 * 1024 * 1024
"""By which a router's memory may rise within its life and still count as flat."""
_MEASURED_FROM_S = 100.0
"""A run as long as this has a router in it that lived long enough for its memory to be judged."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    clients: int
    requests: int
    turned_away: int
    """Requests that a router refused while it ended, and that another one served."""
    outcomes: Mapping[str, int]
    faults: Mapping[str, int]
    by_fault: Mapping[str, Mapping[str, int]]
    """Fault -> outcomes of the requests that ended while it was on (several may be at one time)."""
    longest_s: float
    continued: int
    """Broken streams that another engine went on with, at the routers that live at the end."""
    grown_bytes: Mapping[str, tuple[float, float]]
    """Router process -> (seconds, growth)."""
    unsettled: Sequence[str]
    not_back: Sequence[str]
    wrong: Sequence[str]

    def broken(self) -> list[str]:
        """One sentence for each promise that was not kept."""
        found = [
            f"{self.outcomes.get(kind, 0)} requests {what}"
            for kind, what in ((Outcome.LOST, "lost"), (Outcome.HIDDEN, "cut so that nobody could tell"))
            if self.outcomes.get(kind)
        ]
        found += [f"not back to zero: {each}" for each in self.unsettled]
        found += self.not_back
        found += [
            f"{name} grew by {growth / 1e6:.0f} MB in {seconds:.0f} s"
            for name, (seconds, growth) in self.grown_bytes.items()
            if growth > _GROWTH_BYTES
        ]
        if not self.grown_bytes and self.seconds >= _MEASURED_FROM_S:
            found.append("no router lived long enough for its memory to be judged")
        if not self.outcomes.get(Outcome.COMPLETE):
            found.append("nothing was served at all")
        return found


def table(report: Report) -> Table:
    made = Table(title=f"{report.requests} requests of {report.clients} clients in {report.seconds:.0f} s of faults")
    made.add_column("while")
    made.add_column("times", justify="right")
    for outcome in Outcome:
        made.add_column(outcome.value, justify="right")
    for fault, outcomes in sorted(report.by_fault.items()):
        times = sum(count for name, count in report.faults.items() if name.partition(" ")[2] == fault)
        made.add_row(fault, str(times), *(str(outcomes.get(outcome, 0)) for outcome in Outcome))
    made.add_section()
    made.add_row("all", "", *(str(report.outcomes.get(outcome, 0)) for outcome in Outcome))
    return made
