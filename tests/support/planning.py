"""Variants, demands and a pool that lives through a day, for tests of the planner."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from router.capacity.demand import Demand, Qos, Shape
from router.capacity.laws import Profile
from router.capacity.misses import Misses
from router.capacity.plan import Fleet, Key, Plan, PoolView, Rules
from router.capacity.planner import Planner
from router.capacity.sizing import size
from router.capacity.traffic import Traffic
from router.capacity.variants import Variant
from router.core import Role

CHAT = Shape(rate=1.0, new_tokens=2000.0, cached_tokens=500.0, output_tokens=250.0)


def variant(name: str = "big", *, speed: float = 1.0, **fields: Any) -> Variant:
    """A 70B engine on four accelerators, so many times as fast."""
    laws = Profile(
        overhead_s=0.0,
        token_s=1 / 9000 / speed,
        pair_s=1.6e-9 / speed,
        step_base_s=0.012 / speed,
        step_seq_s=5e-5 / speed,
        step_kv_s=2.7e-8 / speed,
    )
    return Variant(name=name, **{"laws": laws, "kv_tokens": 450_000, **fields})


def demand(rate: float = 5.0, shapes: Sequence[Shape] = (CHAT,), **fields: Any) -> Demand:
    whole = sum(shape.rate for shape in shapes)
    return Demand(shapes=[msgspec.structs.replace(shape, rate=shape.rate / whole * rate) for shape in shapes], **fields)


def view(its_demand: Demand | None, ready: dict[Key, int] | None = None, **fields: Any) -> PoolView:
    return PoolView(
        **{
            "name": "m",
            "variants": [variant()],
            "demand": its_demand,
            "fleet": Fleet(ready=ready or {}),
            "idle_s": 0.0,
            **fields,
        }
    )


class Day:
    """A pool whose engines are there as soon as they are asked for, and serve as the performance law says."""

    def __init__(
        self,
        rate: Callable[[float], float],
        *,
        rules: Rules | None = None,
        seed: int = 1,
        variants: Sequence[Variant] = (),
    ) -> None:
        self._rate = rate
        self._variants = list(variants) or [variant()]
        self._rules = rules or Rules()
        self._rng = random.Random(seed)
        self._next = 0.0
        self._unserved = 0.0
        self.misses = Misses()
        self.answered = self.missed = 0
        self.traffic = Traffic()
        self.planner = Planner()
        self.fleet: dict[Key, int] = {}
        self.plans: list[Plan] = []

    @property
    def changes(self) -> int:
        return sum(plan.desired != plan.present for plan in self.plans)

    def live(self, until: float, every: float = 15.0, start: float = 0.0) -> None:
        now = start
        while now < until:
            now += every
            self._arrive(now)
            seen = self.traffic.demand("m", now, 90.0 + every)
            if self._rules.budget_s and self.fleet:
                self._serve(now, every, seen)
            record = self.misses.record("m", now, self._rules.budget_s)
            asked = view(seen, self.fleet, rules=self._rules, variants=self._variants, record=record)
            self.plans += self.planner.plan(now, [asked])
            self.fleet = dict(self.plans[-1].desired)

    def _serve(self, now: float, every: float, seen: Demand) -> None:
        """So many miss the objective as is to be expected of the fleet."""
        counts = [self.fleet.get((Role.BOTH, variant.name), 0) for variant in self._variants]
        rate = self._rate(now)
        sizing = size(Role.BOTH, self._variants, seen, self._rules.objective, counts, rate)
        number = round(rate * every)
        self._unserved += (1.0 - sizing.attained(counts, rate)) * number
        missed = min(int(self._unserved), number)
        self._unserved -= missed
        for place in range(number):
            self.misses.answered("m", place >= missed, now)
        self.answered, self.missed = self.answered + number, self.missed + missed

    def _arrive(self, until: float) -> None:
        rng = self._rng
        while self._next < until:
            rate = self._rate(self._next)
            if rate > 0:
                prompt = int(2500 * rng.lognormvariate(-0.25, 0.7))
                output = 1 + int(250 * rng.lognormvariate(-0.25, 0.7))
                self.traffic.arrived("m", Qos.INTERACTIVE, prompt, self._next)
                self.traffic.answered("m", Qos.INTERACTIVE, prompt, 0, output, self._next)
            self._next += rng.expovariate(rate) if rate > 0 else 1.0
