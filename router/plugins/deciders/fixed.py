"""always-disagg-pd-decider and never-disagg-pd-decider: the same answer for every request. PURE."""

from __future__ import annotations

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context, Verdict

_ALWAYS = Verdict(True, "pd")
_NEVER = Verdict(False, "pd-never")


class AlwaysDisaggPdDecider(Parameters, frozen=True):
    def decide(self, _context: Context, _decode: Candidate) -> Verdict:
        return _ALWAYS


class NeverDisaggPdDecider(Parameters, frozen=True):
    def decide(self, _context: Context, _decode: Candidate) -> Verdict:
        return _NEVER
