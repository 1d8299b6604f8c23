"""Why a plan is what it is: the binding constraint, the marginal engine, what was rejected. PURE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.capacity.judgement import Judged
from router.capacity.need import Form
from router.capacity.plan import Action, Alternative, Key, Plan, PoolView, cost_of
from router.capacity.variants import Variant
from router.core import Role


class Scarce(NamedTuple):
    """What quotas leave to a pool."""

    full: Sequence[str]
    """Hardware of which not one engine more can be had."""
    room: Mapping[str, int]
    """Hardware -> accelerators that the pool may have, with those it has."""


def held(view: PoolView, reason: str, why: str) -> Plan:
    """What is there stays, and no law was asked."""
    present = view.fleet.present
    return Plan(
        pool=view.name,
        action=Action.HOLD,
        reason=reason,
        why=why,
        desired=present,
        present=present,
        cost_per_hour=cost_of(view, present),
        confidence=0.0 if view.demand is None else view.demand.confidence,
    )


def explained(
    one: Judged,
    desired: Mapping[Key, int],
    action: Action,
    reason: str,
    scarce: Scarce,
    known_s: float = 0.0,
) -> Plan:
    """`known_s`: for how long less has been seen to be enough."""
    view = one.view
    desired = {key: count for key, count in desired.items() if count}
    form = _form_of(desired, one.form)
    binding, role, variant = _binding(one, desired, form, scarce.full)
    attainment = _attained(one, desired, form)
    return Plan(
        pool=view.name,
        action=action,
        reason=reason,
        why=_sentence(one, action, reason, binding, known_s),
        desired=desired,
        present=one.present,
        form=form.value,
        binding=binding,
        marginal=_marginal(one, desired, form, role, variant, attainment, binding),
        alternatives=_alternatives(one, desired, scarce.room),
        attainment=attainment,
        attainment_now=_attained(one, view.fleet.ready, one.form),
        target=one.target,
        attained=view.record.attained,
        rate=one.rate,
        cost_per_hour=cost_of(view, desired),
        confidence=one.demand.confidence * min((v.confidence for v in view.variants), default=0.0),
    )


def _binding(one: Judged, desired: Mapping[Key, int], form: Form, full: Sequence[str]) -> tuple[str, Role, str | None]:
    """What binds, in the role with the least to spare, and the variant of which one less would be felt."""
    rules = one.view.rules
    role = min(form.roles, key=lambda role: _spare(one, role, desired))
    sizing, counts = one.sizings[role], one.counts(role, desired)
    there = [variant.name for variant, count in zip(one.view.variants, counts, strict=True) if count]
    variant = min(there, key=lambda name: -_price(one.view, name), default=None)
    total = sum(counts)
    short = sizing.capacity(counts) < one.rate
    if short and any(v.hardware in full for v in one.view.variants):
        return "quota", role, variant
    if short and total >= rules.most:
        return "maximum", role, variant
    if total <= max(rules.least, 1):
        return "minimum", role, variant
    less = _one_less(counts, one, variant)
    if sizing.capacity(less) >= one.rate:
        if rules.survive_failures and sizing.most(less) - float(sizing.stable[:, 0].max()) < one.demand.rate:
            return "failure", role, variant
        if one.demand.batch and sum(s.rate for s in one.demand.batch) + one.demand.rate > sizing.most(less):
            return "batch", role, variant
    return sizing.binding(counts), role, variant


def _spare(one: Judged, role: Role, desired: Mapping[Key, int]) -> float:
    capacity = one.sizings[role].capacity(one.counts(role, desired))
    return capacity / one.rate if one.rate > 0 else math.inf


def _one_less(counts: Sequence[int], one: Judged, variant: str | None) -> list[int]:
    return [
        count - 1 if count and its.name == variant else count
        for count, its in zip(counts, one.view.variants, strict=True)
    ]


def _marginal(
    one: Judged,
    desired: Mapping[Key, int],
    form: Form,
    role: Role,
    variant: str | None,
    attainment: float | None,
    binding: str,
) -> str:
    if variant is None or attainment is None:
        return ""
    fewer = dict(desired)
    fewer[role, variant] -= 1
    left = _attained(one, fewer, form) or 0.0
    saved = f"it costs {_price(one.view, variant):g} an hour"
    without = f"without one {role.value} engine of {variant}"
    for digits in (1, 2, 3):
        less, all_ = f"{left:.{digits}%}", f"{attainment:.{digits}%}"
        if less != all_:
            return f"{without} {less} of requests would meet the objective, not {all_}; {saved}"
    return f"{without} as many requests would meet the objective, {attainment:.1%}; {saved}, and {binding} keeps it"


def _attained(one: Judged, counts: Mapping[Key, int], form: Form) -> float | None:
    """At the planned rate."""
    share = 1.0
    for role in form.roles:
        sizing = one.sizings.get(role)
        if sizing is None:
            return None
        share *= sizing.attained(one.counts(role, counts), one.rate)
    return share


def _alternatives(one: Judged, desired: Mapping[Key, int], room: Mapping[str, int]) -> list[Alternative]:
    """Each variant alone in each form, at its least number, but for what is desired."""
    if one.unmet is not None:
        # No number of any of them meets the objective.
        return []
    found = []
    cost = cost_of(one.view, desired)
    for form in Form:
        if not all(role in one.sizings for role in form.roles):
            continue
        for index, variant in enumerate(one.view.variants):
            numbers = [one.sizings[role].alone[index] if role in variant.roles else None for role in form.roles]
            known = [max(number, one.view.rules.least) for number in numbers if number is not None]
            if len(known) < len(numbers):
                why = "cannot meet the objective"
                found.append(Alternative(what=f"{form.value}, {variant.name} alone", cost_per_hour=None, why=why))
                continue
            counts = {(role, variant.name): number for role, number in zip(form.roles, known, strict=True)}
            if counts != desired:
                words = " and ".join(f"{number} {role.value}" for (role, _), number in counts.items())
                what, price = f"{form.value}, {words} of {variant.name}", variant.cost_per_hour * sum(known)
                against = _against(one, variant, known, price - cost, room)
                found.append(Alternative(what=what, cost_per_hour=price, why=against))
    found.sort(key=lambda each: math.inf if each.cost_per_hour is None else each.cost_per_hour)
    return found[:6]


def _against(one: Judged, variant: Variant, numbers: Sequence[int], dearer: float, room: Mapping[str, int]) -> str:
    taken, has = variant.accelerators * sum(numbers), room.get(variant.hardware or "")
    if has is not None and taken > has:
        return f"over the quota, it takes {taken} {variant.hardware} of {has} that may be had"
    if max(numbers) > one.view.rules.most or sum(numbers) > variant.most:
        return "more engines than may be had"
    if dearer > 1e-9:
        return f"dearer by {dearer:g} an hour"
    if dearer > -1e-9:
        return "no cheaper"
    return "cheaper, but engines that are there stay until less has been enough for long and a change pays"


def _sentence(one: Judged, action: Action, reason: str, binding: str, known_s: float) -> str:
    rate = f"{one.rate:.2f} requests/s"
    if one.unmet is not None:
        return (
            f"most requests miss the objective with any number of engines that may be had ({one.unmet} binds), so that "
            f"{rate} are planned for without it: what is wanted keeps the queues from growing"
        )
    impossible = 1.0 - min(sizing.possible for sizing in one.sizings.values())
    tail = f"; {impossible:.1%} of requests cannot meet it on any variant, even alone" if impossible > 0.001 else ""
    asked, attained = one.view.rules.objective.attainment, one.view.record.attained
    if one.target < asked and attained is not None:
        tail += f"; {attained:.2%} met the objective lately, so that {one.target:.1%} is enough now"
    match action:
        case Action.OUT if reason == "standing":
            stands_s = one.view.rules.stabilization_s
            return f"more was asked for within the last {stands_s:g} s, which stands for so long; {rate} now{tail}"
        case Action.OUT:
            return f"what is there does not suffice for {rate}: {binding} binds{tail}"
        case Action.IN | Action.MIXED:
            return f"less suffices for {rate} and the dead band{tail}"
        case _:
            enough_s = one.view.rules.stabilization_s
            words = {
                "stabilizing": f"less has been enough for {known_s:.0f} s, and goes after {enough_s:g} s, "
                f"in {enough_s - known_s:.0f} s; what is there suffices",
                "starting": "engines that were asked for are starting",
                "demand": "no more can be had",
            }
            return f"{words.get(reason, 'what is there suffices')} for {rate}: {binding} binds{tail}"


def _form_of(desired: Mapping[Key, int], otherwise: Form) -> Form:
    if not desired:
        return otherwise
    roles = {role for role, _ in desired}
    # While one form takes the other's place both are there; the new one is then complete.
    return (
        otherwise
        if all(role in roles for role in otherwise.roles)
        else next(form for form in Form if any(role in roles for role in form.roles))
    )


def _price(view: PoolView, name: str) -> float:
    return next((variant.cost_per_hour for variant in view.variants if variant.name == name), 0.0)
