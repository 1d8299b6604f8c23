"""Joint: pools in one integer programme, solved by HiGHS through `scipy.optimize.milp`. PURE.

Of which rows it is made `router.capacity.programme` tells. Needs scipy (``kvrouter[planner]``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

from router.capacity.need import MOST_DRAIN, Need, Solution, Unsolved
from router.capacity.sizing import Sizing
from router.capacity.variants import Variant
from router.core import Role


def together(needs: Sequence[Need], quotas: Mapping[str, int]) -> list[Solution] | None:
    """The best plans within the quotas; None when infeasible. Raises Unsolved."""
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
        self._bottom: list[float] = []
        self._top: list[float] = []
        self._rows: list[Sequence[tuple[int, float]]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def column(self, cost: float, *, top: float, bottom: float = 0.0, integer: bool = True) -> int:
        self._cost.append(cost)
        self._bottom.append(bottom)
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
            bounds=Bounds(self._bottom, self._top),
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
            stays = float(need.floor.get((role, variant.name), 0))
            top = max(float(min(variant.most, need.most)), stays)
            place = model.column(variant.cost_per_hour, top=top, bottom=stays)
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
        start = need.start_cost.get(variant.name, 0.0)
        drain = min(need.drain_cost.get(variant.name, 0.0), MOST_DRAIN * variant.cost_per_hour)
        for sign, cost in ((1.0, start), (-1.0, drain)):
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
