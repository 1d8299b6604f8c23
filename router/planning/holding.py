"""Holding: engines that do not answer are no reason to want fewer. PURE.

An engine that is in the pool and does not answer is not counted on, so more may be asked for in its place; but what was
wanted last does not fall by it. While none of a pool answers, nothing can be told of its need and its number stays.
Engines that the planner let go, and those that left the pool, are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from router.capacity.plan import Action, Fleet, Key, Plan, PoolView, cost_of, counted

Counts = Mapping[Key, int]


class _Last(NamedTuple):
    wanted: Counts
    there: Counts


class Holding:
    """What was wanted last of each pool, beside what was there then."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def silent(self, pool: str, fleet: Fleet, least: int) -> bool:
        """Whether none of the pool's engines answers, though some are wanted."""
        return not any(fleet.ready.values()) and any(self._kept(pool, fleet, least).values()) and bool(fleet.silent)

    def held(self, plan: Plan, view: PoolView) -> Plan:
        """The plan, with the engines that do not answer and are not to be given up; noted as the last one."""
        found = self._held(plan, view) if view.fleet.silent else plan
        self._last[plan.pool] = _Last(found.desired, view.fleet.there)
        return found

    def forget(self, pool: str) -> None:
        self._last.pop(pool, None)

    def _held(self, plan: Plan, view: PoolView) -> Plan:
        fleet, least = view.fleet, view.rules.least
        kept = self._kept(plan.pool, fleet, least)
        names = counted(fleet.silent)
        if self.silent(plan.pool, fleet, least):
            why = f"{names} in the pool and none that answers: as many as were wanted stay"
            return msgspec.structs.replace(
                plan, desired=kept, present=fleet.there, cost_per_hour=cost_of(view, kept), why=why
            )
        silent = msgspec.structs.replace(plan, silent=fleet.silent)
        if plan.action in (Action.IN, Action.ZERO):
            return silent
        there = fleet.there
        floor = {key: min(count, there.get(key, 0)) for key, count in kept.items()}
        desired = _most(plan.desired, floor)
        if sum(desired.values()) == sum(plan.desired.values()):
            return silent
        why = f"{plan.why}; of what is wanted {names} did not answer"
        return msgspec.structs.replace(silent, desired=desired, cost_per_hour=cost_of(view, desired), why=why)

    def _kept(self, pool: str, fleet: Fleet, least: int) -> dict[Key, int]:
        """What is wanted as long as nothing else is known."""
        there, last = fleet.there, self._last.get(pool)
        if last is None:
            # Of a pool that may be empty, engines that never answered are none that anybody started.
            return dict(there if least else fleet.present)
        let_go = {key for key, count in last.there.items() if last.wanted.get(key, 0) < count}
        more = {key: count for key, count in there.items() if key not in let_go}
        return {key: count for key, count in _most(last.wanted, more).items() if count}


def _most(one: Counts, other: Counts) -> dict[Key, int]:
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}
