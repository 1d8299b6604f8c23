"""What flow control is given."""

from __future__ import annotations

from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.objectives import Objective, Objectives
from router.flowcontrol.policy import FlowPolicy
from router.flowcontrol.saturation import (
    ConcurrencyDetector,
    Detector,
    EitherDetector,
    Unlimited,
    UtilizationDetector,
    Watch,
)
from router.settings import Settings


def policy(settings: Settings, watch: Watch) -> FlowPolicy:
    """`watch`: what scrapes have taught, which outlives a policy."""
    flow = settings.flow_control
    return FlowPolicy(
        limits=QueueLimits(
            total=Limits(flow.max_requests, flow.max_bytes),
            each_class=Limits(flow.class_max_requests, flow.class_max_bytes),
            classes={
                known.priority: Limits(
                    known.max_requests or flow.class_max_requests, known.max_bytes or flow.class_max_bytes
                )
                for known in flow.classes
            },
            sheddable_share=flow.sheddable_share,
        ),
        detector=_detector(settings, watch),
        objectives=_objectives(settings),
        turns=Turns(quantum=float(flow.quantum_tokens), ordering=flow.ordering, weights=flow.tenant_weights),
        holdback=flow.holdback,
    )


def _objectives(settings: Settings) -> Objectives:
    """What requests are entitled to by their objective and priority."""
    flow = settings.flow_control
    return Objectives(
        {
            known.name: Objective(
                priority=known.priority,
                ttft_slo_s=None if known.ttft_slo_ms is None else known.ttft_slo_ms / 1000,
                max_wait_s=known.max_wait_s,
            )
            for known in flow.objectives
        },
        max_wait_s=flow.max_wait_s,
        class_wait_s={known.priority: known.max_wait_s for known in flow.classes if known.max_wait_s is not None},
    )


def _detector(settings: Settings, watch: Watch) -> Detector:
    """When an endpoint counts as saturated."""
    flow = settings.flow_control
    if not flow.enabled:
        return Unlimited()
    concurrency = ConcurrencyDetector(
        watch,
        queue_depth=flow.queue_depth,
        max_requests=flow.max_requests_per_endpoint,
        max_tokens=flow.max_tokens_per_endpoint,
    )
    if flow.detector == "concurrency":
        return concurrency
    utilization = UtilizationDetector(
        watch, queue_depth=flow.queue_depth, kv_usage=flow.kv_usage, max_age_s=flow.max_metrics_age_s
    )
    return utilization if flow.detector == "utilization" else EitherDetector([utilization, concurrency])


def priorities(settings: Settings) -> list[int]:
    """Those that the configuration names."""
    flow = settings.flow_control
    return sorted({*(known.priority for known in flow.objectives), *(known.priority for known in flow.classes)})
