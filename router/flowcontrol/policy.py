"""FlowPolicy: all that the configuration says of what waits, for how long, and whose turn it is. PURE."""

from __future__ import annotations

from typing import NamedTuple

from router.flowcontrol.limits import QueueLimits, Turns
from router.flowcontrol.objectives import Objectives
from router.flowcontrol.saturation import Detector


class FlowPolicy(NamedTuple):
    limits: QueueLimits
    detector: Detector
    """When an endpoint has no room."""
    objectives: Objectives
    turns: Turns = Turns()
    holdback: int = 0
    """Requests of room on each endpoint that are kept for the highest class while it sends any."""
