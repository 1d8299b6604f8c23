"""What others see of the planner: Prometheus metrics and the JSON of ``/debug/plan``. PURE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.capacity.plan import Plan
from router.core import Role
from router.planning.service import Status

_KEY = ["pool", "role", "variant"]


class PlanMetrics(Collector):
    """Labels are bounded: pools are the planner's, variants the configured ones."""

    def __init__(self, status: Callable[[], Status], now: Callable[[], float]) -> None:
        self._status = status
        self._now = now

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        desired = GaugeMetricFamily("kvrouter_desired_replicas", "Engines that there should be", labels=_KEY)
        current = GaugeMetricFamily("kvrouter_current_replicas", "Engines counted on now", labels=_KEY)
        ratio = GaugeMetricFamily("kvrouter_desired_ratio", "Desired over current replicas; 1 is content", labels=_KEY)
        for plan in status.plans:
            for role, variant in sorted({*plan.desired, *plan.present, *plan.silent, *status.seen.get(plan.pool, ())}):
                labels = [plan.pool, role.value, variant]
                wanted, there = plan.desired.get((role, variant), 0), plan.present.get((role, variant), 0)
                desired.add_metric(labels, wanted)
                current.add_metric(labels, there)
                # Who multiplies what runs with it has those that do not answer, too.
                running = there + plan.silent.get((role, variant), 0)
                ratio.add_metric(labels, 1.0 if wanted == running else wanted / max(running, 1))
        yield from (desired, current, ratio)
        yield from self._of_pools(status)
        actions = CounterMetricFamily("kvrouter_plan_actions", "Plans that changed a pool", labels=["pool", "action"])
        for (pool, action), count in status.actions.items():
            actions.add_metric([pool, action], count)
        yield actions
        yield CounterMetricFamily(
            "kvrouter_plan_failures", "Times the solver gave nothing in time", value=status.failures
        )
        startup = GaugeMetricFamily(
            "kvrouter_variant_startup_seconds",
            "From asking for an engine to its first useful token, as planned with",
            labels=["pool", "variant"],
        )
        for (pool, name), seconds in status.startup_s.items():
            startup.add_metric([pool, name], seconds)
        yield startup
        age = None if status.made_at is None else self._now() - status.made_at
        if age is not None:
            yield GaugeMetricFamily("kvrouter_plan_age_seconds", "Since the last plan was made", value=age)
        if status.took_s is not None:
            yield GaugeMetricFamily("kvrouter_plan_seconds", "What making it took", value=status.took_s)

    def _of_pools(self, status: Status) -> Iterable[Metric]:
        reason = GaugeMetricFamily(
            "kvrouter_plan_reason",
            "1 for what the plan does, why, and what binds",
            labels=["pool", "action", "reason", "binding"],
        )
        confidence = GaugeMetricFamily("kvrouter_plan_confidence", "0 (a prior) to 1", labels=["pool"])
        attainment = GaugeMetricFamily(
            "kvrouter_plan_attainment", "Share of requests expected within the objective", labels=["pool", "fleet"]
        )
        cost = GaugeMetricFamily("kvrouter_plan_cost_per_hour", "Of the desired engines", labels=["pool"])
        rate = GaugeMetricFamily("kvrouter_plan_rate", "Requests a second that are planned for", labels=["pool"])
        observed = GaugeMetricFamily(
            "kvrouter_plan_observed_attainment",
            "Share of requests that met the objective over capacity.budget_s",
            labels=["pool"],
        )
        target = GaugeMetricFamily(
            "kvrouter_plan_target_attainment", "Share of requests that is planned for now", labels=["pool"]
        )
        held = GaugeMetricFamily(
            "kvrouter_held_requests", "Requests that wait for a pool's first engine", labels=["pool"]
        )
        for plan in status.plans:
            reason.add_metric([plan.pool, plan.action.value, plan.reason, plan.binding], 1)
            confidence.add_metric([plan.pool], plan.confidence)
            cost.add_metric([plan.pool], plan.cost_per_hour)
            rate.add_metric([plan.pool], plan.rate)
            held.add_metric([plan.pool], status.held.get(plan.pool, 0))
            if plan.attained is not None:
                observed.add_metric([plan.pool], plan.attained)
            if plan.target is not None:
                target.add_metric([plan.pool], plan.target)
            for fleet, share in (("desired", plan.attainment), ("current", plan.attainment_now)):
                if share is not None:
                    attainment.add_metric([plan.pool, fleet], share)
        yield from (reason, confidence, attainment, observed, target, cost, rate, held)


def described(status: Status | None, now: float) -> dict[str, Any]:
    """For ``/debug/plan``; `status` is None without a planner."""
    if status is None:
        return {"enabled": False, "plans": []}
    return {
        "enabled": True,
        "stale_s": None if status.made_at is None else round(now - status.made_at, 1),
        "took_s": status.took_s,
        "failures": status.failures,
        "held": status.held,
        "startup_s": [{"pool": pool, "variant": name, "seconds": s} for (pool, name), s in status.startup_s.items()],
        "plans": [_plan(plan) for plan in status.plans],
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "pool": plan.pool,
        "action": plan.action.value,
        "reason": plan.reason,
        "why": plan.why,
        "form": plan.form,
        "binding": plan.binding,
        "marginal": plan.marginal,
        "desired": _counts(plan.desired),
        "present": _counts(plan.present),
        "silent": _counts(plan.silent),
        "attainment": plan.attainment,
        "attainment_now": plan.attainment_now,
        "target": plan.target,
        "attained": plan.attained,
        "rate": plan.rate,
        "cost_per_hour": plan.cost_per_hour,
        "confidence": plan.confidence,
        "alternatives": [{"what": a.what, "cost_per_hour": a.cost_per_hour, "why": a.why} for a in plan.alternatives],
    }


def _counts(counts: Any) -> list[dict[str, Any]]:
    found: list[tuple[Role, str]] = sorted(counts)
    return [{"role": role.value, "variant": name, "count": counts[role, name]} for role, name in found]
