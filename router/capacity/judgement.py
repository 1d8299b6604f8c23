"""Judgement: what the performance law says of a pool's present fleet under its demand. PURE."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from router.capacity.budget import eased
from router.capacity.demand import Demand
from router.capacity.need import Form
from router.capacity.plan import Key, PoolView
from router.capacity.sizing import Sizing, size
from router.core import Role

_REACHED = 0.5
"""An objective that fewer meet, with as many engines as may be had, is out of reach: engines do not buy it."""
_MOSTLY = 0.8
"""Of the requests that each of two roles can serve in time, so many make `_REACHED` of both."""
_IDLE = 0.5
"""Part of what engines could take at all."""
_BACKLOG_S = 60.0
"""Within which a backlog is to be worked off once what is asked for serves."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of a cycle, with what the law says."""

    view: PoolView
    demand: Demand
    rate: float
    """What must be carried."""
    sizings: Mapping[Role, Sizing]
    form: Form
    """The present one."""
    suffices: bool
    present: Mapping[Key, int]
    doubt: float = 0.0
    """Part of what is expected that is added in `rate` for what the forecast does not know."""
    target: float = 0.99
    """Share of requests that is planned for at this moment."""
    unmet: str | None = None
    """What keeps the objective out of reach of any number of engines; what keeps queues from growing is planned for."""

    def counts(self, role: Role, of: Mapping[Key, int]) -> list[int]:
        return [of.get((role, variant.name), 0) for variant in self.view.variants]


def judge(view: PoolView, ease: float = 0.0) -> Judged:
    """The law's tables for a pool that has demand, and whether what is there suffices. `ease`: of
    `router.capacity.budget`."""
    demand, rules = view.demand, view.rules
    assert demand is not None
    if not demand.shapes:
        # Batch alone: any of its shapes tells the law what a request is.
        demand = msgspec.structs.replace(demand, shapes=[msgspec.structs.replace(s, rate=1e-6) for s in demand.batch])
    present = view.fleet.present
    expected = demand.rate * (1.0 + rules.headroom) + _backlog_rate(view, demand)
    unsure = demand.rate * rules.certainty * (1.0 - ease) * demand.error
    rate = expected + unsure
    if rules.burst > 1.0:
        rate = max(rate, demand.calm_rate * rules.burst)
    form = form_of(view)
    target = eased(rules.objective.attainment, ease)
    objective = msgspec.structs.replace(rules.objective, attainment=target)
    roles = [role for each in Form if _allowed(view, each) for role in each.roles]
    there = {role: [present.get((role, variant.name), 0) for variant in view.variants] for role in roles}
    sizings = {role: size(role, view.variants, demand, objective, there[role], rate) for role in roles}
    unmet = _unmet(view, sizings, rate)
    if unmet is not None:
        queued = msgspec.structs.replace(objective, attainment=0.0)
        sizings = {role: size(role, view.variants, demand, queued, there[role], rate) for role in roles}
    one = Judged(
        view=view,
        demand=demand,
        rate=rate,
        sizings=sizings,
        form=form,
        suffices=False,
        present=present,
        doubt=unsure / expected if expected > 0.0 else 0.0,
        target=target,
        unmet=unmet,
    )
    return msgspec.structs.replace(one, suffices=carries(one, present))


def _unmet(view: PoolView, sizings: Mapping[Role, Sizing], rate: float) -> str | None:
    """What most requests miss in the best form though as many engines as may be had are half idle; None while enough
    meet the objective, and where it is the load that is too great."""
    best, binding, idle = 0.0, "stability", False
    for form in Form:
        if not all(role in sizings for role in form.roles):
            continue
        if all(_reached(view, sizings[role]) for role in form.roles):
            return None
        share, worst, lost, light = 1.0, "stability", 0.0, True
        for role in form.roles:
            able = [n for n, variant in enumerate(view.variants) if role in variant.roles and variant.most]
            if not able:
                share = 0.0
                continue
            most = np.array([[float(max(min(view.rules.most, variant.most), 1))] for variant in view.variants])
            found = sizings[role].law.attained(most, rate / most)
            place = max(able, key=lambda n: float(found.both[n, 0]))
            share *= float(found.both[place, 0])
            light &= rate < _IDLE * most[place, 0] * float(sizings[role].stable[place, 0])
            for name, part in (("ttft", found.ttft), ("tpot", found.tpot), ("kv", found.room)):
                if 1.0 - float(part[place, 0]) > lost:
                    worst, lost = name, 1.0 - float(part[place, 0])
        if share >= best:
            best, binding, idle = share, worst, light
    return binding if best < _REACHED and idle else None


def _reached(view: PoolView, sizing: Sizing) -> bool:
    """Whether one variant by itself is enough for most requests, which the sizing knows without the law."""
    if sizing.possible < _MOSTLY:
        return False
    return any(
        count is not None and count <= min(view.rules.most, variant.most) and sizing.role in variant.roles
        for count, variant in zip(sizing.alone, sizing.variants, strict=True)
    )


def carries(one: Judged, counts: Mapping[Key, int]) -> bool:
    """Whether engines of these numbers would do for what must be carried now: in the present form or, where they are
    complete in another one only, in that."""
    there = {role for (role, _), count in counts.items() if count}
    forms = sorted(Form, key=lambda form: form is not one.form)
    form = next((form for form in forms if there.issuperset(form.roles)), one.form)
    for role in form.roles:
        sizing = one.sizings.get(role)
        if sizing is None:
            return False
        its = one.counts(role, counts)
        if sum(its) < max(one.view.rules.least, 1) or sizing.capacity(its) < one.rate:
            return False
        if one.view.rules.survive_failures and sizing.most(its) - sizing.strongest(its) < one.demand.rate:
            return False
    return True


def _backlog_rate(view: PoolView, demand: Demand) -> float:
    """Requests a second that a queue beyond the usual one adds until it is worked off."""
    if not demand.backlog_tokens or not demand.shapes or not demand.rate:
        return 0.0
    tokens = sum(shape.rate * shape.new_tokens for shape in demand.shapes) / demand.rate
    usual = demand.rate * view.rules.objective.ttft_s / 2
    return max(demand.backlog_tokens / max(tokens, 1.0) - usual, 0.0) / _BACKLOG_S


def form_of(view: PoolView) -> Form:
    """What the pool is now; of an empty one, what it may be."""
    present = view.fleet.present
    if any(role is Role.BOTH and count for (role, _), count in present.items()):
        return Form.AGGREGATED
    if any(count for count in present.values()) and view.rules.disaggregated:
        return Form.DISAGGREGATED
    return Form.AGGREGATED if view.rules.aggregated else Form.DISAGGREGATED


def _allowed(view: PoolView, form: Form) -> bool:
    return view.rules.aggregated if form is Form.AGGREGATED else view.rules.disaggregated
