"""Plan: what the planner is given of a pool and what it says, as values. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from router.capacity.demand import Demand, Objective
from router.capacity.variants import Variant
from router.core import Role

Key = tuple[Role, str]
"""Role and variant's name."""


class Action(StrEnum):
    """What a plan does; a metric label."""

    HOLD = "hold"
    OUT = "out"
    IN = "in"
    MIXED = "mixed"
    """Some engines are started so that others can go."""
    ZERO = "zero"
    WAKE = "wake"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool is planned."""

    objective: Objective = Objective()
    aggregated: bool = True
    """Engines that serve whole requests may be used."""
    disaggregated: bool = False
    """Prefill and decode engines may be used."""
    least: int = 1
    """Engines of each role; 0 allows scaling to zero."""
    most: int = 64
    headroom: float = 0.05
    """Share of the demand that is planned for beyond what is forecast and its error."""
    burst: float = 1.0
    """Times the calm traffic that there is always room for."""
    survive_failures: bool = False
    """One engine of each role may fail, and what remains still takes the traffic."""
    stabilization_s: float = 300.0
    """How long fewer engines must have been enough before some are drained."""
    margin: float = 0.1
    """By how much the demand may grow until what a scale-in leaves is too little: a dead band against flapping."""
    idle_s: float = 600.0
    """Without a request for so long, a pool that may goes to zero."""
    lasting_s: float = 1800.0
    """Time over which the cost of a start or a drain is spread."""
    certainty: float = 0.5
    """Standard deviations of the forecast's error that are planned for: what counts is the share of requests over all
    that may come, not over the worst of it."""
    budget_s: float = 0.0
    """Time over which the share of requests that meet the objective is counted (`router.capacity.budget`); 0: at each
    moment anew."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a pool."""

    ready: Mapping[Key, int] = {}
    starting: Mapping[Key, int] = {}
    """Asked for, not serving yet, and not overdue."""
    hung: Mapping[Key, int] = {}
    """Asked for long ago: not counted on, and not asked for a second time without end."""
    silent: Mapping[Key, int] = {}
    """In the pool and not answering: not counted on, and not given up."""

    @property
    def present(self) -> dict[Key, int]:
        """What can be counted on soon."""
        keys = [*self.ready, *self.starting]
        return {key: self.ready.get(key, 0) + self.starting.get(key, 0) for key in keys}

    @property
    def there(self) -> dict[Key, int]:
        """What is in the pool or on its way, answering or not."""
        present = self.present
        return {key: present.get(key, 0) + self.silent.get(key, 0) for key in {**present, **self.silent}}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pool's interactive requests, over `Rules.budget_s` and over the last twelfth of it."""

    answered: int = 0
    missed: int = 0
    """Outside their objective."""
    lately: int = 0
    missed_lately: int = 0

    @property
    def attained(self) -> float | None:
        """Share within the objective; None of no request."""
        return 1.0 - self.missed / self.answered if self.answered else None


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool at one time."""

    name: str
    variants: Sequence[Variant]
    rules: Rules = Rules()
    demand: Demand | None = None
    """Forecast for when engines asked for now would serve; None while nothing fresh is known."""
    fleet: Fleet = Fleet()
    idle_s: float | None = None
    """For so long nobody has wanted anything of it; None: that is not known, and it is not taken for idle."""
    record: Record = Record()


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """What was not chosen."""

    what: str
    cost_per_hour: float | None
    """None: it cannot meet the objective at all."""
    why: str = ""
    """What speaks against it."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool should have, and why."""

    pool: str
    action: Action
    reason: str
    """A short word from a bounded set, used as a metric label."""
    why: str
    """A sentence."""
    desired: Mapping[Key, int] = {}
    present: Mapping[Key, int] = {}
    silent: Mapping[Key, int] = {}
    """Engines beside these that do not answer."""
    form: str = "aggregated"
    binding: str = "minimum"
    """What keeps it from being less: ttft, tpot, kv, stability, batch, failure, minimum, maximum or quota."""
    marginal: str = ""
    """What would be lost with one engine less."""
    alternatives: Sequence[Alternative] = ()
    attainment: float | None = None
    """Share of interactive requests expected to meet the objective with what is desired."""
    attainment_now: float | None = None
    """The same with what is there."""
    target: float | None = None
    """Share that was planned for at this moment; None where no law was asked."""
    attained: float | None = None
    """Share that met the objective lately; None while nothing is known of it."""
    rate: float = 0.0
    """Requests a second that were planned for."""
    cost_per_hour: float = 0.0
    confidence: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.desired.values())

    def of_role(self, role: Role) -> int:
        return sum(count for (its, _), count in self.desired.items() if its is role)


def counted(counts: Mapping[Key, int]) -> str:
    """``2 prefill h100, 1 decode h100``, or ``none``."""
    shown = [f"{count} {role.value} {name}" for (role, name), count in sorted(counts.items()) if count]
    return ", ".join(shown) or "none"


def cost_of(view: PoolView, counts: Mapping[Key, int]) -> float:
    """An hour of these engines; one of no known variant is free."""
    price = {variant.name: variant.cost_per_hour for variant in view.variants}
    return sum(price.get(name, 0.0) * count for (_, name), count in counts.items())
