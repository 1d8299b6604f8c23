"""label-selector-filter: endpoints that match a Kubernetes label selector. PURE.

All of `matchLabels` and all of `matchExpressions` must hold. As in Kubernetes, ``NotIn`` also holds for an endpoint
without the label, and an empty selector holds for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context

_WITH_VALUES = ("In", "NotIn")


class Requirement(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One expression of a label selector."""

    key: Annotated[str, Meta(min_length=1)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.operator in _WITH_VALUES and not self.values:
            raise ValueError(f"operator {self.operator} of {self.key!r} needs values")
        if self.operator not in _WITH_VALUES and self.values:
            raise ValueError(f"operator {self.operator} of {self.key!r} takes no values")

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator == "In":
            return value in self.values
        if self.operator == "NotIn":
            return value not in self.values
        return (value is not None) is (self.operator == "Exists")


class LabelSelectorFilter(Parameters, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if self._keeps(candidate.state.endpoint.labels)]

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.holds(labels) for requirement in self.match_expressions
        )
