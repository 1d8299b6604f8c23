"""What passes the gate: what a request that must wait brings, and what it is let in with. PURE."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from router.core import Decision, EndpointState, InferenceRequest, TokenizedPrompt
from router.flowcontrol.charges import Charge
from router.inflight import InflightTracker, Lease

Place = Callable[[Collection[str]], Decision]
"""Decides for a request now, among endpoints of these ids if it may. Raises `RouterError`."""


class Hold:
    """What holds a decided request's place until its legs take leases of their own."""

    __slots__ = ("_decode", "_prefill")

    def __init__(self, decode: Lease | None = None, prefill: Lease | None = None) -> None:
        self._decode = decode
        self._prefill = prefill

    def prefill_begins(self) -> None:
        if self._prefill is not None:
            self._prefill.release()

    def release(self) -> None:
        """All of it; may be called again."""
        self.prefill_begins()
        if self._decode is not None:
            self._decode.release()


def hold(places: InflightTracker, decision: Decision, tokens: int) -> Hold:
    """A place for each leg of `decision`, of a prompt of so many tokens, taken from `places`."""
    return Hold(
        places.acquire(decision.decode[0].id, prefill_tokens=0, tokens=tokens),
        places.acquire(decision.prefill[0].id, prefill_tokens=0, tokens=tokens) if decision.prefill else None,
    )


class Admitted(NamedTuple):
    decision: Decision
    hold: Hold
    charge: Charge | None = None
    """What its tenant was charged; None for one that did not wait."""


class Waiting(NamedTuple):
    """What a request that must wait brings."""

    request: InferenceRequest
    prompt: TokenizedPrompt
    splits: bool
    """It needs room on a prefill endpoint too."""
    prefers: tuple[str, ...]
    place: Place
    states: Callable[[], Sequence[EndpointState]]
    """The endpoints that could serve its model now. Raises `RouterError` when there are none."""
