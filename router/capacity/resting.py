"""Resting: what a pool without traffic to size it by should have: its least engines, the first ones, or none. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from router.capacity.explanation import held
from router.capacity.judgement import form_of
from router.capacity.plan import Action, Key, Plan, PoolView, cost_of


def below_least(view: PoolView) -> bool:
    """Whether a role has fewer engines than it must."""
    present, least = view.fleet.present, view.rules.least
    return any(sum(n for (r, _), n in present.items() if r is role) < least for role in form_of(view).roles)


def zero(view: PoolView) -> Plan:
    """Nobody has asked for it for long, and it may go."""
    why = f"no request for {view.rules.idle_s:g} s"
    present = view.fleet.present
    return Plan(pool=view.name, action=Action.ZERO, reason="idle", why=why, present=present, confidence=1.0)


def woken(view: PoolView) -> Plan:
    """At least one engine of each role: the cheapest, the quickest to start among equals."""
    present = dict(view.fleet.present)
    desired = dict(present)
    for role in form_of(view).roles:
        able = [variant for variant in view.variants if role in variant.roles and variant.most > 0]
        missing = max(view.rules.least, 1) - sum(n for (r, _), n in present.items() if r is role)
        if able and missing > 0:
            best = min(able, key=lambda variant: (variant.cost_per_hour, variant.startup_s))
            desired[role, best.name] = desired.get((role, best.name), 0) + missing
    if desired == present:
        return held(view, "starting" if view.fleet.starting else "quiet", "what requests wait for is there already")
    waiting = view.demand.held if view.demand else 0
    lacking = "below its least" if view.rules.least else "requests waited for an engine a short time ago"
    return Plan(
        pool=view.name,
        action=Action.WAKE,
        reason="wake",
        why=f"{waiting} requests wait for an engine" if waiting else lacking,
        desired=desired,
        present=present,
        form=form_of(view).value,
        cost_per_hour=cost_of(view, desired),
        confidence=view.demand.confidence if view.demand else 0.0,
    )


def least_of(view: PoolView) -> dict[Key, int]:
    """The least engines of what is there, the cheapest ones."""
    present, rules = view.fleet.present, view.rules
    price = {variant.name: variant.cost_per_hour for variant in view.variants}
    left_over: dict[Key, int] = {}
    for role in form_of(view).roles:
        left = max(rules.least, 1)
        for key in sorted((key for key in present if key[0] is role), key=lambda key: (price.get(key[1], 0.0), key[1])):
            if kept := min(present[key], left):
                left_over[key] = kept
            left -= kept
    return left_over


def quiet(view: PoolView) -> Plan:
    """No traffic: the least engines are enough, once that has lasted."""
    present, rules, desired = view.fleet.present, view.rules, least_of(view)
    if sum(desired.values()) >= sum(present.values()):
        return held(view, "quiet", "no traffic, and no more than the least engines are there")
    idle_s = view.idle_s or 0.0
    if idle_s < rules.stabilization_s:
        why = (
            f"no request for {idle_s:.0f} s: the least engines are enough after {rules.stabilization_s:g} s, "
            f"in {rules.stabilization_s - idle_s:.0f} s"
        )
        return held(view, "quiet", why)
    if view.fleet.starting:
        return held(view, "starting", "no traffic, but engines that were asked for are starting")
    why = f"no request for {rules.stabilization_s:g} s: the least engines are enough"
    return resting(view, Action.IN, "quiet", desired, why)


def resting(view: PoolView, action: Action, reason: str, desired: Mapping[Key, int], why: str) -> Plan:
    """A plan that no law was asked for."""
    return Plan(
        pool=view.name,
        action=action,
        reason=reason,
        why=why,
        desired=desired,
        present=view.fleet.present,
        form=form_of(view).value,
        cost_per_hour=cost_of(view, desired),
        confidence=1.0,
    )
