"""The field's laws of scaling, from what is published of them; `docs/autoscaling.md` names the sources. PURE.

Each has one knob, the target that an operator would tune, for each role its own. In a disaggregated pool a law that
knows no roles is asked once for each role, of that role's engines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from loadtest.replay.results import quantile
from loadtest.replay.scaling.base import Gauge, Given, Knob, Seen
from router.core import Role
from router.observability.events import Observer

_TOLERANCE = 0.1
"""HPA leaves a fleet alone while the metric is this near to its target."""
_DOWN_S = 300.0
"""HPA's and KEDA's default stabilization before a scale-in."""


class _Lowest:
    """The greatest recommendation of the last while: what HPA scales in to."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._past: deque[tuple[float, int]] = deque()

    def steady(self, now: float, wanted: int, current: int) -> int:
        self._past.append((now, wanted))
        while self._past[0][0] < now - self._window_s:
            self._past.popleft()
        return wanted if wanted >= current else min(current, max(count for _, count in self._past))


class Static:
    """As many as there are at the beginning, or as it is told."""

    interval_s = 60.0
    observer: Observer | None = None

    def __init__(self, given: Given, engines: Knob) -> None:
        self._engines = {role: int(engines[role]) for role in given.roles}

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        return self._engines


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler on one metric of an engine: desired = ceil(ready x mean / target)."""

    interval_s = 15.0
    observer: Observer | None = None

    def __init__(self, given: Given, target: Knob, metric: str) -> None:
        self._given, self._target, self._metric = given, target, metric
        self._lowest = {role: _Lowest(_DOWN_S) for role in given.roles}

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        return {role: self._of(seen, role) for role in self._given.roles}

    def _of(self, seen: Seen, role: Role) -> int:
        engines, total, target = seen.of(role), seen.total(role), self._target[role]
        if not engines:
            return max(total, 1)
        value = sum(map(self._value, engines))
        ratio = value / len(engines) / target
        # Engines that are not ready count as idle when the metric asks for more.
        if ratio > 1.0:
            ratio = max(value / total / target, 1.0)
        wanted = total if abs(ratio - 1.0) <= _TOLERANCE else math.ceil((total if ratio > 1 else len(engines)) * ratio)
        wanted = min(max(wanted, 1), max(2 * total, total + 4))
        return self._lowest[role].steady(seen.now, wanted, total)

    def _value(self, engine: Gauge) -> float:
        return engine.kv_usage if self._metric == "kv" else engine.running + engine.waiting


class Kpa:
    """Knative's autoscaler as AIBrix uses it: concurrency over a stable window of 180 s, and a panic window of 60 s in
    which nothing is taken away once twice as many would be wanted."""

    interval_s = 5.0
    observer: Observer | None = None

    def __init__(self, given: Given, target: Knob) -> None:
        self._given, self._target = given, target
        self._past: dict[Role, deque[tuple[float, float]]] = {role: deque() for role in given.roles}
        self._panic: dict[Role, tuple[float, int]] = {}

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        return {role: self._of(seen, role) for role in self._given.roles}

    def _of(self, seen: Seen, role: Role) -> int:
        past, total = self._past[role], seen.total(role)
        past.append((seen.now, float(sum(engine.running + engine.waiting for engine in seen.of(role)))))
        while past[0][0] < seen.now - 180.0:
            past.popleft()
        recent = [value for at, value in past if at >= seen.now - 60.0]
        stable = math.ceil(sum(value for _, value in past) / len(past) / self._target[role])
        panic = math.ceil(sum(recent) / len(recent) / self._target[role])
        begun, most = self._panic.get(role, (-math.inf, 0))
        if panic >= 2 * max(seen.ready(role), 1):
            begun = seen.now
        if seen.now - begun < 60.0:
            most = max(most, panic, total)
            self._panic[role] = (begun, most)
            return most
        self._panic.pop(role, None)
        return max(stable, 1)


class KedaSlo:
    """llm-d's SLO-aware KEDA law: the greater of P90 TTFT and P90 TPOT over their objectives, averaged over 45 s; out
    above 0.55, in below 0.40. Of a disaggregated pool, TTFT moves the prefill engines and TPOT the others. The knob
    scales both bounds."""

    interval_s = 15.0
    observer: Observer | None = None

    def __init__(self, given: Given, scale: Knob) -> None:
        self._given = given
        self._bounds = {role: (0.55 * scale[role], 0.40 * scale[role]) for role in given.roles}
        self._lowest = {role: _Lowest(_DOWN_S) for role in given.roles}

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        samples = [sample for sample in seen.samples if sample.at >= seen.now - 45.0]
        return {role: self._of(seen, role, self._signal(samples, role)) for role in self._given.roles}

    def _signal(self, samples: Sequence, role: Role) -> float:  # type: ignore[type-arg]
        ttft = _p90([s.ttft_s for s in samples]) / self._given.ttft_s
        tpot = _p90([s.tpot_s for s in samples if s.tpot_s is not None]) / self._given.tpot_s
        signal = ttft if role is Role.PREFILL else tpot if role is Role.DECODE else max(ttft, tpot)
        return min(signal, 2.0)

    def _of(self, seen: Seen, role: Role, signal: float) -> int:
        total, (up, down) = max(seen.total(role), 1), self._bounds[role]
        if signal > up:
            share = seen.ready(role) / total
            wanted = total + max(math.ceil(total * (signal * share / up - 1.0)), 0)
        elif signal < down:
            wanted = total - math.floor(total * (1.0 - signal / down))
        else:
            wanted = total
        return self._lowest[role].steady(seen.now, max(wanted, 1), total)


class Wva:
    """llm-d's workload variant autoscaler, saturation analysis: one more when the engines that are not saturated have
    too little to spare on average, one less when the others could carry its load and still have that."""

    interval_s = 30.0
    observer: Observer | None = None

    def __init__(self, given: Given, spare_kv: Knob) -> None:
        self._given, self._spare_kv = given, spare_kv

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        return {role: self._of(seen, role) for role in self._given.roles}

    def _of(self, seen: Seen, role: Role) -> int:
        engines, total, spare_kv = seen.of(role), max(seen.total(role), 1), self._spare_kv[role]
        able = [engine for engine in engines if engine.kv_usage < 0.8 and engine.waiting < 5]
        if not able:
            return total + 1
        kv = sum(0.8 - engine.kv_usage for engine in able) / len(able)
        queue = sum(5 - engine.waiting for engine in able) / len(able)
        if kv < spare_kv or queue < 3:
            return total + 1 if not seen.starting.get(role) else total
        if len(able) < 2 or total != len(engines):
            return total
        left = len(able) - 1
        load = sum(engine.kv_usage for engine in able) / left
        queued = sum(engine.waiting for engine in able) / left
        return total - 1 if 0.8 - load >= spare_kv and 5 - queued >= 3 else total


class LoadPlanner:
    """Dynamo's planner: every 180 s the load of the next interval is predicted, and divided by what an engine does
    within the objectives according to its profile; requests that queue are not in it."""

    interval_s = 180.0
    observer: Observer | None = None

    def __init__(self, given: Given, share: Knob, prefill_tokens_per_s: float, decode_tokens_per_s: float) -> None:
        """`share`: of the profile's throughput that is counted on."""
        self._given, self._share = given, share
        self._prefill, self._decode = prefill_tokens_per_s, decode_tokens_per_s
        self._past: deque[tuple[float, float]] = deque(maxlen=2)

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        self._past.append((seen.prompt_tokens / self.interval_s, seen.output_tokens / self.interval_s))
        prompt, output = (self._ahead([pair[i] for pair in self._past]) for i in range(2))
        prefill, decode = prompt / self._prefill, output / self._decode
        needs = {Role.PREFILL: prefill, Role.DECODE: decode, Role.BOTH: prefill + decode}
        return {role: max(math.ceil(needs[role] / self._share[role]), 1) for role in self._given.roles}

    def _ahead(self, values: Sequence[float]) -> float:
        return max(2 * values[-1] - values[0], 0.0) if len(values) == 2 else values[-1]


def _p90(values: Sequence[float]) -> float:
    return quantile(sorted(values), 0.9) if values else 0.0
