"""Running: what requests cost their tenants, from what is expected at first to what they were served. PURE."""

from __future__ import annotations

from collections.abc import Callable

from router.core import InferenceRequest
from router.flowcontrol.charges import Charge

_CORRECT_S = 1.0
_LEARN = 0.02


class Running:
    """Charges of requests that were dispatched from the queues and are not over."""

    __slots__ = ("_charges", "_corrected_at", "_mean_output")

    def __init__(self) -> None:
        self._charges: dict[Charge, Callable[[], int]] = {}
        self._corrected_at = 0.0
        self._mean_output = 256.0
        """Tokens of an answer, over all that were served lately."""

    def expected_output(self, request: InferenceRequest) -> float:
        """Tokens of its answer."""
        mean = self._mean_output
        return mean if request.max_tokens is None else min(mean, request.max_tokens * request.n)

    def begins(self, charge: Charge, served: Callable[[], int]) -> None:
        """`served` tells from now on how many tokens it was served."""
        self._charges[charge] = served

    def ends(self, charge: Charge | None, served: int, output_tokens: int | None) -> None:
        """A request is over; `charge` None: it did not wait."""
        if output_tokens:
            self._mean_output += _LEARN * (output_tokens - self._mean_output)
        if charge is not None:
            self._charges.pop(charge, None)
            charge.correct(served)

    def correct(self, now: float) -> None:
        """Answers longer than expected are charged while they run."""
        if now - self._corrected_at >= _CORRECT_S:
            self._corrected_at = now
            for charge, served in self._charges.items():
                charge.correct(max(charge.tokens, served()))
