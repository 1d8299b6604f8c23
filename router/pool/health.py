"""Health with hysteresis: from what probes and requests saw to a verdict. PURE.

UNKNOWN    --probe ok-->  HEALTHY      --probe failed-->  UNHEALTHY   (never seen alive: one probe decides)
HEALTHY    --`probes_down` probes in a row failed, or `request_failures_down` requests in a row-->  UNHEALTHY
UNHEALTHY  --`probes_up` probes in a row ok (one is enough if requests took it out)-->  HEALTHY

An endpoint that requests took out comes back on trial: a probe does not vouch for requests, so it is given one of them
at a time until one is answered; one failure takes it out again.
"""

from __future__ import annotations

import msgspec

from router.core import Health


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    probes_up: int = 2
    probes_down: int = 2
    request_failures_down: int = 3
    """Consecutive connection-level failures on the request path; an answer of any kind in between starts anew."""


class HealthTracker(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and the streaks that led to it; each observation gives a new value."""

    verdict: Health = Health.UNKNOWN
    reason: str = "not probed yet"
    """Why, in a few safe words, for people."""
    probes_ok: int = 0
    probes_failed: int = 0
    requests_failed: int = 0
    by_requests: bool = False
    """Requests, not probes, made it unhealthy."""
    on_trial: bool = False
    """It is back after that, and no request has been answered since."""

    def probe_ok(self, policy: HealthPolicy) -> HealthTracker:
        streak = self.probes_ok + 1
        needed = policy.probes_up if self.verdict is Health.UNHEALTHY and not self.by_requests else 1
        if streak < needed:
            return msgspec.structs.replace(self, probes_ok=streak, probes_failed=0)
        # A probe does not vouch for requests: their streak goes on, unless it has just been paid for.
        requests_failed = 0 if self.by_requests else self.requests_failed
        return HealthTracker(
            verdict=Health.HEALTHY,
            reason="probe ok",
            probes_ok=min(streak, needed),
            requests_failed=requests_failed,
            on_trial=self.on_trial or self.by_requests,
        )

    def probe_failed(self, policy: HealthPolicy, reason: str) -> HealthTracker:
        streak = self.probes_failed + 1
        down = self.verdict is not Health.HEALTHY or streak >= policy.probes_down
        return msgspec.structs.replace(
            self,
            verdict=Health.UNHEALTHY if down else self.verdict,
            reason=f"probe failed: {reason}",
            probes_ok=0,
            probes_failed=min(streak, policy.probes_down),
            # A failed probe is evidence of its own: coming back then takes `probes_up`.
            by_requests=self.by_requests and not down,
        )

    def request_failed(self, policy: HealthPolicy) -> HealthTracker:
        streak = min(self.requests_failed + 1, policy.request_failures_down)
        if self.verdict is Health.UNHEALTHY or (streak < policy.request_failures_down and not self.on_trial):
            return msgspec.structs.replace(self, requests_failed=streak)
        return HealthTracker(
            verdict=Health.UNHEALTHY,
            reason="its trial request failed" if self.on_trial else f"{streak} requests in a row failed",
            requests_failed=streak,
            by_requests=True,
        )

    def request_ok(self) -> HealthTracker:
        """A request that began before the trouble may still end well: it clears the streak and heals nothing."""
        if not self.requests_failed and not self.on_trial:
            return self
        on_trial = self.on_trial and self.verdict is not Health.HEALTHY
        return msgspec.structs.replace(self, requests_failed=0, on_trial=on_trial)
