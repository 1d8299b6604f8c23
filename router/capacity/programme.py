"""The integer programme: how many engines of which variant in which role, at the least cost. PURE.

Of each pool one form is chosen: aggregated (role both) or disaggregated (roles prefill and decode). Of a role, with
x engines by variant, and y the chosen tier of their number N (`router.capacity.sizing`):

    sum x >= N y                         there are as many as the tier says
    sum good(tier) x >= rate y           they meet the objective
    sum stable x >= rate + batch         the batch work finds room, which waits while others do not
    sum stable x - stable of any one >= rate     one may fail, where that is asked for

Cost is money an hour, plus what starting and draining cost once, spread over the time that a change is expected to
last. Pools are solved one by one; only when a quota of accelerators would be broken, together. Solved by HiGHS through
`scipy.optimize.milp` (``kvrouter[planner]``); where there is one variant only, in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

from router.capacity.single import changes, least
from router.capacity.sizing import Sizing
from router.capacity.variants import Variant
from router.core import Role


class Form(StrEnum):
    AGGREGATED = "aggregated"
    DISAGGREGATED = "disaggregated"

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role.BOTH,) if self is Form.AGGREGATED else (Role.PREFILL, Role.DECODE)


Counts = Mapping[tuple[Role, str], int]
"""(role, variant's name) -> engines; what is not in it is none."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, ready to be solved."""

    pool: str
    sizings: Mapping[Role, Sizing]
    """Of every role of every form in question."""
    rate: float
    """Interactive requests a second that must meet the objective."""
    survive_rate: float = 0.0
    """What must be carried when one engine of a role is gone; 0: nothing."""
    total_rate: float = 0.0
    """Interactive and due batch requests together."""
    whole: Mapping[Role, Sequence[float]] = {}
    """By variant, how many of those together an engine takes."""
    present: Counts = {}
    least: int = 0
    """Engines of each role."""
    most: int = 1024
    start_cost: Mapping[str, float] = {}
    """By variant, money an hour to which one start amounts."""
    drain_cost: Mapping[str, float] = {}
    switch_cost: float = 0.0
    """The same for another form than the present one."""
    form: Form | None = None
    """The present one."""

    @property
    def forms(self) -> list[Form]:
        return [form for form in Form if all(role in self.sizings for role in form.roles)]

    @property
    def variants(self) -> tuple[Variant, ...]:
        return next(iter(self.sizings.values())).variants


class Solution(NamedTuple):
    form: Form
    counts: dict[tuple[Role, str], int]
    cost: float
    """Money an hour of the engines, changes apart."""


class Unsolved(Exception):
    """There is no such plan; the message says why, as far as is known."""


def solve(needs: Sequence[Need], quotas: Mapping[str, int]) -> list[Solution | None]:
    """The best plan of each pool, None where its bounds allow none. Raises Unsolved when the quotas leave no plan for
    all together, they are too many for that, or none is found in the steps that are allowed.
    """
    solutions = [_solve_one(need) for need in needs]
    over = [name for name, quota in quotas.items() if used(name, needs, solutions) > quota]
    if not over:
        return solutions
    solvable = [place for place, solution in enumerate(solutions) if solution is not None]
    if len(solvable) > _MOST_TOGETHER:
        raise Unsolved(f"the quota of {', '.join(over)} is for more pools than are planned together")
    joint = _run([needs[place] for place in solvable], quotas)
    if joint is None:
        raise Unsolved(f"the quota of {', '.join(over)} does not suffice for what the pools need")
    for place, solution in zip(solvable, joint, strict=True):
        solutions[place] = solution
    return solutions


def used(hardware: str, needs: Sequence[Need], solutions: Sequence[Solution | None]) -> int:
    """Accelerators of that kind in the solutions."""
    total = 0
    for need, solution in zip(needs, solutions, strict=True):
        size = {variant.name: variant.accelerators for variant in need.variants if variant.hardware == hardware}
        if solution is not None:
            total += sum(size.get(name, 0) * count for (_, name), count in solution.counts.items())
    return total


def _solve_one(need: Need) -> Solution | None:
    if len(need.variants) == 1 and need.rate > 0.0:
        return _closed(need)
    found = _run([need], {})
    return None if found is None else found[0]


def _closed(need: Need) -> Solution | None:
    """One variant needs no solver."""
    found = [(form, counts) for form in need.forms if (counts := least(need, form)) is not None]
    if not found:
        return None
    form, counts = min(found, key=lambda each: changes(need, *each))
    variant = need.variants[0]
    return Solution(
        form=form,
        counts={(role, variant.name): count for role, count in counts.items() if count},
        cost=variant.cost_per_hour * sum(counts.values()),
    )


def _run(needs: Sequence[Need], quotas: Mapping[str, int]) -> list[Solution] | None:
    """None when infeasible."""
    model = _Model()
    parts = [_Part(model, need) for need in needs]
    for hardware, quota in quotas.items():
        row = [
            (place, float(variant.accelerators))
            for part in parts
            for (_, variant), place in part.engines.items()
            if variant.hardware == hardware
        ]
        if row:
            model.at_most(row, float(quota))
    values = model.solved(max(_MOST_NODES // len(needs), 1))
    return None if values is None else [part.read(values) for part in parts]


class _Model:
    """Columns and rows as they come, then matrices."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._integer: list[int] = []
        self._top: list[float] = []
        self._rows: list[Sequence[tuple[int, float]]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def column(self, cost: float, *, top: float, integer: bool = True) -> int:
        self._cost.append(cost)
        self._integer.append(int(integer))
        self._top.append(top)
        return len(self._cost) - 1

    def at_least(self, row: Sequence[tuple[int, float]], value: float) -> None:
        self._row(row, value, np.inf)

    def at_most(self, row: Sequence[tuple[int, float]], value: float) -> None:
        self._row(row, -np.inf, value)

    def equal(self, row: Sequence[tuple[int, float]], value: float) -> None:
        self._row(row, value, value)

    def _row(self, row: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self._rows.append(row)
        self._low.append(low)
        self._high.append(high)

    def solved(self, nodes: int) -> Any:
        """Values of the columns after so many nodes of the search at most; None when infeasible. Raises Unsolved."""
        rows = [number for number, row in enumerate(self._rows) for _ in row]
        columns = [place for row in self._rows for place, _ in row]
        values = [value for row in self._rows for _, value in row]
        matrix = csr_matrix((values, (rows, columns)), shape=(len(self._rows), len(self._cost)))
        result = milp(
            self._cost,
            integrality=self._integer,
            bounds=Bounds(0, self._top),
            constraints=LinearConstraint(matrix, self._low, self._high),
            options={"node_limit": nodes, "mip_rel_gap": 0.002},
        )
        if result.x is not None:
            return result.x
        if result.status == _INFEASIBLE:
            return None
        raise Unsolved("the solver found none in the steps it is allowed")


_INFEASIBLE = 2
_MOST_NODES = 500
"""Of the search tree, over the pools in it. A limit of time would make plans depend on how busy the machine is."""
_MOST_TOGETHER = 24
"""Pools that share out a quota in one programme; more of them would take longer than a plan may."""


class _Part:
    """One pool's columns and rows in a model."""

    def __init__(self, model: _Model, need: Need) -> None:
        self._model = model
        self._need = need
        self.engines: dict[tuple[Role, Variant], int] = {}
        self._forms = {
            form: model.column(need.switch_cost if need.form not in (None, form) else 0.0, top=1) for form in need.forms
        }
        model.equal([(place, 1.0) for place in self._forms.values()], 1.0)
        for form, chosen in self._forms.items():
            for role in form.roles:
                self._role(need.sizings[role], chosen)
        for variant in need.variants:
            everywhere = [(place, 1.0) for (_, v), place in self.engines.items() if v is variant]
            if everywhere:
                model.at_most(everywhere, float(variant.most))
                model.at_least(everywhere, float(variant.least))

    def _role(self, sizing: Sizing, chosen: int) -> None:
        model, need, role = self._model, self._need, sizing.role
        places: list[int | None] = []
        for variant in sizing.variants:
            if role not in variant.roles:
                places.append(None)
                continue
            place = model.column(variant.cost_per_hour, top=float(min(variant.most, need.most)))
            self.engines[role, variant] = place
            self._change(role, variant, place)
            places.append(place)
        open_ = [(place, index) for index, place in enumerate(places) if place is not None]
        model.at_most([*((place, 1.0) for place, _ in open_), (chosen, -float(need.most))], 0.0)
        model.at_least([*((place, 1.0) for place, _ in open_), (chosen, -float(need.least))], 0.0)
        self._objective(sizing, open_, chosen)
        if need.total_rate > 0.0:
            whole = need.whole[role]
            model.at_least([*((place, whole[index]) for place, index in open_), (chosen, -need.total_rate)], 0.0)
        if need.survive_rate > 0.0:
            self._survival(sizing, open_, chosen)

    def _objective(self, sizing: Sizing, open_: Sequence[tuple[int, int]], chosen: int) -> None:
        """The tier of their number, and that they meet the objective there."""
        model, rate = self._model, self._need.rate
        tiers = [model.column(0.0, top=1) for _ in sizing.tiers]
        model.equal([*((tier, 1.0) for tier in tiers), (chosen, -1.0)], 0.0)
        counted = [(tier, -float(size)) for tier, size in zip(tiers, sizing.tiers, strict=True)]
        model.at_least([*((place, 1.0) for place, _ in open_), *counted], 0.0)
        for number, tier in enumerate(tiers):
            good = [(place, float(sizing.good[index, number])) for place, index in open_]
            model.at_least([*good, (tier, -rate)], 0.0)

    def _survival(self, sizing: Sizing, open_: Sequence[tuple[int, int]], chosen: int) -> None:
        model, need = self._model, self._need
        stable = [float(value) for value in sizing.stable[:, 0]]
        together = [(place, stable[index]) for place, index in open_]
        for place, index in open_:
            there = model.column(0.0, top=1)
            model.at_least([(there, float(need.most)), (place, -1.0)], 0.0)
            model.at_least([*together, (there, -stable[index]), (chosen, -need.survive_rate)], 0.0)

    def _change(self, role: Role, variant: Variant, place: int) -> None:
        model, need = self._model, self._need
        now = float(need.present.get((role, variant.name), 0))
        for sign, price in ((1.0, need.start_cost), (-1.0, need.drain_cost)):
            cost = price.get(variant.name, 0.0)
            if cost > 0.0:
                changed = model.column(cost, top=1e6, integer=False)
                model.at_least([(changed, 1.0), (place, -sign)], -sign * now)

    def read(self, values: Any) -> Solution:
        form = max(self._forms, key=lambda form: float(values[self._forms[form]]))
        counts = {
            (role, variant.name): count
            for (role, variant), place in self.engines.items()
            if (count := round(float(values[place])))
        }
        cost = sum(variant.cost_per_hour * counts.get((role, variant.name), 0) for role, variant in self.engines)
        return Solution(form=form, counts=counts, cost=cost)
