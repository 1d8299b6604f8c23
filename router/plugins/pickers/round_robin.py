"""round-robin-picker: one after the other, whatever the scores; the reference that load tests compare with. PURE.

The one built-in plugin that remembers something: how many it has picked for each leg. It is exact in one process and
means nothing across several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from router.core import Candidate, Leg
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context


class _NoParameters(Parameters, frozen=True):
    pass


class RoundRobinPicker:
    __slots__ = ("_picked",)

    def __init__(self) -> None:
        self._picked = dict.fromkeys(Leg, 0)

    @classmethod
    def create(cls, parameters: Mapping[str, Any]) -> Self:
        _NoParameters.create(parameters)
        return cls()

    def pick(self, context: Context, candidates: Sequence[Candidate], _scores: Sequence[float]) -> Sequence[Candidate]:
        """Turns go by endpoint id, whatever the candidates' order; the rest follow in turn, as fallbacks."""
        picked = self._picked[context.leg]
        self._picked[context.leg] = picked + 1
        ordered = sorted(candidates, key=lambda candidate: candidate.state.endpoint.id)
        turn = picked % len(ordered)
        return ordered[turn:] + ordered[:turn]
