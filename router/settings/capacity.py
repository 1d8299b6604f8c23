"""Settings of capacity planning. PURE."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from router.settings.section import Section
from router.settings.words import Count, CountOrZero, Seconds, SecondsOrZero


class CapacitySettings(Section):
    """How many engines are needed. See `docs/autoscaling.md`."""

    planner: bool = False
    """Plan the engines that the traffic needs, and publish it as `kvrouter_desired_replicas` and at `/debug/plan`.
    Needs `pip install kvrouter[planner]`."""
    actuator: Literal["metrics", "dry-run", "local"] = "metrics"
    """Who carries plans out. `metrics`: HPA or KEDA by the metrics; `dry-run`: nobody, what would be done is logged;
    `local`: this router, with `local_command`."""
    local_command: Annotated[tuple[str, ...], Strict(False)] = ()
    """Command that starts one engine on this machine, with `{port}`, `{role}` and `{variant}` in its words."""
    variants_file: str | None = None
    """YAML of the engines that could be started, with their cost, start-up time and laws; null: one variant, whose laws
    are learnt."""
    interval_s: Seconds = 15.0
    """Between two plans."""
    timeout_s: Seconds = 5.0
    """Time for the solver; past it the last plan stays in force."""
    ttft_slo_s: Seconds = 2.0
    """Objective for the time to first token."""
    tpot_slo_s: Seconds = 0.05
    """Objective for the time per output token after the first."""
    attainment_ratio: float = Field(default=0.99, gt=0, lt=1)
    """Share of interactive requests that must meet both."""
    budget_s: SecondsOrZero = 3600.0
    """Time over which that share is counted: while few requests have missed in it, more may at one moment, for fewer
    engines. 0: it is planned for at each moment. At most four hours count."""
    min_engines: CountOrZero = 1
    """Least engines of each role of a pool; 0: an idle pool goes to zero, and requests wait for it to come back."""
    max_engines: Count = 64
    """Most engines of each role of a pool."""
    quotas: dict[str, CountOrZero] = Field(default_factory=dict)
    """Hardware name, as variants give it, to the most accelerators of it over all pools."""
    form: Literal["present", "aggregated", "disaggregated", "either"] = "present"
    """Whether prompts are prefilled on engines of their own; `present`: as the pool does now."""
    headroom_ratio: float = Field(default=0.05, ge=0, le=5)
    """Share of the demand that is planned for beyond the forecast and its error."""
    burst_ratio: float = Field(default=1.0, ge=1, le=100)
    """Bursts that come faster than engines start reach so many times the calm traffic (the lowest quarter of the last
    hour's minutes): room for them is kept all the time. 1: none is."""
    survive_failures: bool = False
    """One engine of each role may fail, and the others still take the traffic."""
    stabilization_s: SecondsOrZero = 300.0
    """How long fewer engines must have been enough before some are drained."""
    margin_ratio: float = Field(default=0.1, ge=0, le=1)
    """By how much the demand may grow until what a scale-in leaves would be too little."""
    idle_s: Seconds = 600.0
    """Without a request for so long, a pool that may goes to zero."""
    stale_s: Seconds = 60.0
    """A pool none of whose engines was heard of for so long keeps what it has."""
    hold_s: Seconds = 300.0
    """How long a request waits for a pool at zero to have an engine."""
    max_held: Count = 1024
    """Requests that may wait so; one more is answered 503 at once."""
