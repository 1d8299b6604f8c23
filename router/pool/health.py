"""Health with hysteresis: from what probes and requests saw to a verdict. PURE.

UNKNOWN    --probe ok-->  HEALTHY      --probe failed-->  UNHEALTHY   (never seen alive: one probe decides)
HEALTHY    --`probes_down` probes in a row failed, or `request_failures_down` requests, or `errors_down` answers-->
UNHEALTHY  --`probes_up` probes in a row ok (if requests took it out: one; 2, 4, ... while its trials fail)-->  HEALTHY

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
    """Consecutive connection-level failures on the request path; a good answer in between starts anew."""
    errors_down: int = 5
    """The same for answers of 500, 502 and 504."""
    probes_up_most: int = 16
    """Good probes that an endpoint needs at most whose trials go on failing."""


class HealthTracker(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and the streaks that led to it; each observation gives a new value."""

    verdict: Health = Health.UNKNOWN
    reason: str = "not probed yet"
    """Why, in a few safe words, for people."""
    probes_ok: int = 0
    probes_failed: int = 0
    requests_failed: int = 0
    errors: int = 0
    """Answers that were errors, in a row."""
    taken_out: int = 0
    """By requests, in a row: without a good answer in between."""
    by_requests: bool = False
    """Requests, not probes, made it unhealthy."""
    on_trial: bool = False
    """It is back after that, and no request has been answered since."""

    def probe_ok(self, policy: HealthPolicy) -> HealthTracker:
        streak = self.probes_ok + 1
        needed = 1
        if self.by_requests:
            needed = min(2 ** (self.taken_out - 1), policy.probes_up_most)
        elif self.verdict is Health.UNHEALTHY:
            needed = policy.probes_up
        if streak < needed:
            return msgspec.structs.replace(self, probes_ok=streak, probes_failed=0)
        # A probe does not vouch for requests: their streak goes on, unless it has just been paid for.
        requests_failed = 0 if self.by_requests else self.requests_failed
        return HealthTracker(
            verdict=Health.HEALTHY,
            reason="probe ok",
            probes_ok=min(streak, needed),
            requests_failed=requests_failed,
            errors=0 if self.by_requests else self.errors,
            taken_out=self.taken_out,
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

    def request_failed(self, policy: HealthPolicy, may_eject: bool = True) -> HealthTracker:
        """`may_eject` False: it is noted, and has no consequence yet."""
        streak = min(self.requests_failed + 1, policy.request_failures_down)
        noted = msgspec.structs.replace(self, requests_failed=streak)
        if streak < policy.request_failures_down and not self.on_trial:
            return noted
        return noted._taken_out(policy, f"{streak} requests in a row failed", may_eject)

    def request_errored(self, policy: HealthPolicy, may_eject: bool = True) -> HealthTracker:
        """It answered with an error that may be its own."""
        streak = min(self.errors + 1, policy.errors_down)
        noted = msgspec.structs.replace(self, errors=streak)
        if streak < policy.errors_down and not self.on_trial:
            return noted
        return noted._taken_out(policy, f"{streak} errors in a row answered", may_eject)

    def on_brink(self, policy: HealthPolicy) -> bool:
        """One more error takes it out."""
        return self.verdict is Health.HEALTHY and (self.on_trial or self.errors + 1 >= policy.errors_down)

    def excused(self) -> HealthTracker:
        """The errors were their requests' own."""
        return msgspec.structs.replace(self, errors=0)

    def _taken_out(self, policy: HealthPolicy, reason: str, may_eject: bool) -> HealthTracker:
        if self.verdict is Health.UNHEALTHY or not may_eject:
            return self
        return msgspec.structs.replace(
            self,
            verdict=Health.UNHEALTHY,
            reason="its trial request failed" if self.on_trial else reason,
            probes_ok=0,
            probes_failed=0,
            taken_out=min(self.taken_out + 1, policy.probes_up_most),
            by_requests=True,
            on_trial=False,
        )

    def tried(self) -> HealthTracker:
        """One request at a time from now on, until one is answered."""
        return msgspec.structs.replace(self, on_trial=True)

    def request_ok(self) -> HealthTracker:
        """A request that began before the trouble may still end well: it clears the streaks and heals nothing."""
        if not (self.requests_failed or self.errors or self.on_trial or self.taken_out):
            return self
        healthy = self.verdict is Health.HEALTHY
        return msgspec.structs.replace(
            self,
            requests_failed=0,
            errors=0,
            taken_out=0 if healthy else self.taken_out,
            on_trial=self.on_trial and not healthy,
        )
