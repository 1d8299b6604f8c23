"""formula-scorer: a formula of the field, as `loadtest.replay.policies` has it, as a plugin of the serving router.

The package is offered to a router process by `offer`, as an installed third-party package would offer itself. PURE but
for `offer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadtest.replay.policies.base import Cost
from loadtest.replay.policies.dynamo import DynamoLinear
from loadtest.replay.policies.least_requests import least_requests
from loadtest.replay.policies.llmd_blend import llmd_blend
from loadtest.replay.policies.lmetric import lmetric
from router.core import Candidate
from router.errors import ConfigError
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context
from router.scheduling.registry import GROUP

TYPE = "formula-scorer"

FORMULAS: Mapping[str, Cost] = MappingProxyType(
    {
        "dynamo-w4": DynamoLinear(4.0),
        "least-requests": least_requests,
        "llm-d": llmd_blend,
        "lmetric": lmetric,
    }
)
"""By the names they have in a replay."""


class FormulaScorer(Parameters, frozen=True):
    formula: str

    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """By rank of cost, ties by chance, as in a replay."""
        costs, chance = FORMULAS[self.formula](context, candidates), context.rng.random
        scores = [0.0] * len(candidates)
        order = sorted((cost, chance(), place) for place, cost in enumerate(costs))
        for rank, (_, _, place) in enumerate(order):
            scores[place] = 1.0 - rank / len(order)
        return scores


def create(parameters: Mapping[str, Any]) -> FormulaScorer:
    scorer = FormulaScorer.create(parameters)
    if scorer.formula not in FORMULAS:
        raise ConfigError(f"formula {scorer.formula!r} is unknown: it is one of {', '.join(FORMULAS)}")
    return scorer


def settings(policy: str) -> dict[str, Any]:
    """The `scheduling` key of a router that serves by that policy of a replay."""
    if policy == "default":
        return {}
    profile: dict[str, Any] = {"filters": [], "scorers": [], "picker": "round-robin-picker"}
    if policy == "round-robin":
        return {"profiles": {"decode": profile}}
    return {
        "plugins": [{"type": TYPE, "parameters": {"formula": policy}}],
        "profiles": {"decode": {**profile, "scorers": [{"plugin": TYPE}], "picker": "max-score-picker"}},
    }


POLICIES = ("default", "round-robin", *FORMULAS)


def offer(folder: Path) -> None:
    """Makes the plugin known to every Python process that has `folder` in its path."""
    info = folder / "kvrouter_formulas-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvrouter-formulas\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{TYPE} = {__name__}:create\n", encoding="utf-8")
