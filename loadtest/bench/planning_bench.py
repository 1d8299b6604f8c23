"""Time of one cycle of the planner, over many pools.

Run ``python -m loadtest.bench.planning_bench``: 20 pools with 4 variants each, of which some suffice and others do not,
aggregated, and free to be aggregated or disaggregated, without a quota and with one that all share and that binds; the
best and the median of several cycles in milliseconds of CPU.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from router.capacity.demand import Demand, Shape
from router.capacity.laws import Profile
from router.capacity.plan import Fleet, PoolView, Rules
from router.capacity.planner import Planner
from router.capacity.variants import Variant
from router.core import Role

POOLS, CYCLES = 20, 9
_SPEEDS = {"h100": (1.0, 10.0), "h200": (1.25, 13.0), "a100": (0.55, 5.5), "l40s": (0.3, 3.4)}
"""Hardware -> speed and price of an engine."""


def variants() -> list[Variant]:
    return [_variant(name, *both) for name, both in _SPEEDS.items()]


def _variant(name: str, speed: float, price: float) -> Variant:
    laws = Profile(
        overhead_s=0.001,
        token_s=1.1e-4 / speed,
        pair_s=1.6e-9 / speed,
        step_base_s=0.012 / speed,
        step_seq_s=5e-5 / speed,
        step_kv_s=2.7e-8 / speed,
    )
    return Variant(name=name, hardware=name, accelerators=4, cost_per_hour=price, laws=laws, kv_tokens=450_000)


def pools(rules: Rules, seed: int = 1) -> list[PoolView]:
    """Every one with another mix of requests at another rate, on a fleet for about as much."""
    rng = random.Random(seed)
    return [_pool(f"m{number}", rules, rng) for number in range(POOLS)]


def _pool(name: str, rules: Rules, rng: random.Random) -> PoolView:
    rate = rng.uniform(1.0, 20.0)
    shapes = [
        Shape(
            rate=rate / 8 * rng.uniform(0.5, 1.5),
            new_tokens=rng.uniform(200, 5000),
            cached_tokens=rng.uniform(0, 3000),
            output_tokens=rng.uniform(30, 600),
        )
        for _ in range(8)
    ]
    fleet = {(Role.BOTH, rng.choice(list(_SPEEDS))): max(round(rate * rng.uniform(0.3, 1.0)), 1)}
    return PoolView(
        name=name,
        variants=variants(),
        rules=rules,
        demand=Demand(shapes=shapes, error=0.05),
        fleet=Fleet(ready=fleet),
        idle_s=0.0,
    )


def timed(views: Sequence[PoolView], quotas: Mapping[str, int], cycles: int = CYCLES) -> list[float]:
    """Milliseconds of CPU of each cycle, after one that loads libraries."""
    planner, took = Planner(), []
    for cycle in range(cycles + 1):
        began = time.process_time()
        planner.plan(15.0 * cycle, views, quotas)
        took.append(1e3 * (time.process_time() - began))
    return took[1:]


def quota(views: Sequence[PoolView]) -> dict[str, int]:
    """Three quarters of what the pools would have of the hardware that they like best."""
    taken: dict[str, int] = {}
    for plan in Planner().plan(0.0, views):
        for (_, name), count in plan.desired.items():
            taken[name] = taken.get(name, 0) + 4 * count
    most = max(taken, key=lambda name: taken[name])
    return {most: taken[most] * 3 // 4}


def main() -> None:
    sys.stdout.write(f"{POOLS} pools, {len(_SPEEDS)} variants each\n{'':32}{'best ms':>10}{'median ms':>11}\n")
    for name, rules in (("aggregated", Rules()), ("either form", Rules(disaggregated=True))):
        views = pools(rules)
        for label, quotas in (("no quota", {}), ("a quota binds", quota(views))):
            took = timed(views, quotas)
            sys.stdout.write(f"{f'{name}, {label}':<32}{min(took):>10.0f}{statistics.median(took):>11.0f}\n")


if __name__ == "__main__":
    main()
