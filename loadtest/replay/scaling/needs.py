"""What a day of traffic needs: the planner's programme for slice after slice of a trace, with hindsight. PURE.

Each slice is planned for what truly came in it, at its busiest minute; prompts find cached what a shared cache of the
size of the planned engines' KV space would hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from loadtest.replay.workload import Request, Workload
from router.capacity.demand import Demand, Shape
from router.capacity.plan import Fleet, Key, Plan, PoolView, Rules
from router.capacity.planner import Planner
from router.capacity.variants import Variant

_MINUTE_S = 60.0


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    begin_s: float
    seconds: float
    """Until the next one, or until the last request came."""
    rate: float
    """Requests a second at its busiest minute."""
    cached_share: float
    """Of its prompt tokens."""
    plan: Plan


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    slices: Sequence[Slice]

    @property
    def hours(self) -> float:
        return sum(one.seconds for one in self.slices) / 3600

    def following(self) -> float:
        """Cost of following the needs slice by slice."""
        return sum(one.plan.cost_per_hour * one.seconds for one in self.slices) / 3600

    def peak(self, variants: Sequence[Variant]) -> dict[Key, int]:
        """The fleet that is enough all day: by key the most of any slice."""
        counts: dict[Key, int] = {}
        for one in self.slices:
            for key, count in one.plan.desired.items():
                counts[key] = max(counts.get(key, 0), count)
        return counts

    def fixed(self, variants: Sequence[Variant]) -> float:
        """Cost of having the costliest slice's fleet all the time."""
        return max((one.plan.cost_per_hour for one in self.slices), default=0.0) * self.hours


def needs(
    workload: Workload,
    variants: Sequence[Variant],
    rules: Rules,
    slice_s: float,
    quotas: Mapping[str, int] | None = None,
) -> Needs:
    cache = _Cache(workload.block_size)
    space = max(variant.kv_tokens for variant in variants)
    slices = []
    engines = 1
    groups = groupby(workload.requests, key=lambda request: int(request.at // slice_s))
    ends = workload.requests[-1].at if workload.requests else 0.0
    last = int(ends // slice_s) if workload.requests else -1
    by_number = {number: list(group) for number, group in groups}
    for number in range(last + 1):
        cache.resize(engines * space)
        requests = by_number.get(number, [])
        cached = [cache.ask(request) for request in requests]
        rate = _busiest(requests)
        plan = _plan(_demand(requests, cached, rate), variants, rules, quotas or {})
        engines = max(plan.total, 1)
        prompts = sum(request.prompt for request in requests)
        share = sum(cached) / prompts if prompts else 0.0
        begin_s = number * slice_s
        # A day that ends within a slice is not paid for beyond its end, but for the minute that it is planned for.
        seconds = min(slice_s, max(ends - begin_s, _MINUTE_S))
        slices.append(Slice(begin_s=begin_s, seconds=seconds, rate=rate, cached_share=share, plan=plan))
    return Needs(slices=slices)


def _plan(demand: Demand, variants: Sequence[Variant], rules: Rules, quotas: Mapping[str, int]) -> Plan:
    view = PoolView(name="pool", variants=variants, rules=rules, demand=demand, fleet=Fleet(), idle_s=1e9)
    return Planner().plan(0.0, [view], quotas)[0]


def _busiest(requests: Sequence[Request]) -> float:
    """Requests a second in the busiest minute."""
    minutes: dict[int, int] = {}
    for request in requests:
        minute = int(request.at // _MINUTE_S)
        minutes[minute] = minutes.get(minute, 0) + 1
    return max(minutes.values(), default=0) / _MINUTE_S


def _demand(requests: Sequence[Request], cached: Sequence[int], rate: float) -> Demand:
    groups: dict[tuple[int, int, int], list[tuple[Request, int]]] = {}
    for request, hit in zip(requests, cached, strict=True):
        key = (request.prompt.bit_length(), (request.prompt - hit).bit_length() // 2, request.output.bit_length() // 2)
        groups.setdefault(key, []).append((request, hit))
    shapes = [
        Shape(
            rate=rate * len(group) / len(requests),
            new_tokens=sum(max(request.prompt - hit, 1) for request, hit in group) / len(group),
            cached_tokens=sum(hit for _, hit in group) / len(group),
            output_tokens=sum(request.output for request, _ in group) / len(group),
        )
        for group in groups.values()
    ]
    return Demand(shapes=shapes)


class _Cache:
    """Blocks used last, of all engines together."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._held: OrderedDict[int, None] = OrderedDict()
        self._capacity = 1

    def resize(self, tokens: int) -> None:
        self._capacity = max(tokens // self._size, 1)

    def ask(self, request: Request) -> int:
        """Tokens of the prompt that are cached; it is from then on."""
        hit = 0
        for block in request.blocks:
            if block not in self._held:
                break
            hit += 1
        for block in reversed(request.blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return min(hit * self._size, request.prompt - 1)
